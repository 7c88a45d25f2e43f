WITH ordered AS (
    SELECT customer_id, min(order_date) AS first_order, max(order_date) AS latest_order, count(*) AS orders
    FROM {{ ref('stg_orders') }} GROUP BY customer_id
), paid AS (
    SELECT o.customer_id, sum(p.cents) AS cents
    FROM {{ ref('stg_payments') }} AS p JOIN {{ ref('stg_orders') }} AS o ON p.order_id = o.order_id
    GROUP BY o.customer_id
)
SELECT c.customer_id, c.first_name, c.last_name, o.first_order, o.latest_order, o.orders, p.cents AS lifetime_cents
FROM {{ ref('stg_customers') }} AS c
LEFT JOIN ordered AS o ON c.customer_id = o.customer_id
LEFT JOIN paid AS p ON c.customer_id = p.customer_id
