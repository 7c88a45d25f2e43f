{% set methods = ['credit_card', 'coupon', 'bank_transfer', 'gift_card'] %}
WITH paid AS (
    SELECT
        order_id,
        {% for method in methods %}
        sum(CASE WHEN payment_method = '{{ method }}' THEN cents ELSE 0 END) AS {{ method }}_cents,
        {% endfor %}
        sum(cents) AS cents
    FROM {{ ref('stg_payments') }}
    GROUP BY order_id
)
SELECT o.order_id, o.customer_id, o.order_date, o.status,
    {% for method in methods %} coalesce(p.{{ method }}_cents, 0) AS {{ method }}_cents, {% endfor %}
    coalesce(p.cents, 0) AS cents
FROM {{ ref('stg_orders') }} AS o LEFT JOIN paid AS p ON o.order_id = p.order_id
