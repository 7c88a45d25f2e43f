"""Make the raw tables of a jaffle shop from a seed: `python shop.py LOCATION [DAY]`; each call adds a day."""

import random
import sys
from datetime import date, timedelta

import pyarrow as pa

import persist

CUSTOMERS, ORDERS_A_DAY = 100, 50
STATUSES = ["placed", "shipped", "completed", "return_pending", "returned"]
METHODS = ["credit_card", "coupon", "bank_transfer", "gift_card"]


def add_day(location: str, day: int = 0) -> None:
    """Write the orders of one day, and who their customers are; the same for the same day."""
    chance = random.Random(day)
    ids = range(day * ORDERS_A_DAY, (day + 1) * ORDERS_A_DAY)
    customers = pa.table(
        {
            "id": range(CUSTOMERS),
            "first_name": [f"First{n}" for n in range(CUSTOMERS)],
            "last_name": [f"{chr(65 + n % 26)}." for n in range(CUSTOMERS)],
        }
    )
    orders = pa.table(
        {
            "id": ids,
            "user_id": [chance.randrange(CUSTOMERS) for _ in ids],
            "order_date": [date(2026, 1, 1) + timedelta(days=day) for _ in ids],
            "status": [chance.choice(STATUSES) for _ in ids],
        }
    )
    paid = [order for order in ids for _ in range(chance.choice([0, 1, 1, 1, 2]))]
    payments = pa.table(
        {
            "id": [day * 10_000 + n for n in range(len(paid))],
            "order_id": paid,
            "payment_method": [chance.choice(METHODS) for _ in paid],
            "cents": [chance.randrange(100, 3000) for _ in paid],
        }
    )
    tables = {"raw_customers": customers, "raw_orders": orders, "raw_payments": payments}
    with persist.open(location) as client:
        loaded = {name: client.create_or_load(name, like=rows, key=["id"]) for name, rows in tables.items()}
        with client.multi_write() as commit:  # A view of several tables has a time once all of them have it.
            for name, rows in tables.items():
                commit.upsert(loaded[name], rows)


if __name__ == "__main__":
    add_day(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
