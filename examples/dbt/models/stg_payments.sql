SELECT id AS payment_id, order_id, payment_method, cents FROM {{ source('shop', 'raw_payments') }}
