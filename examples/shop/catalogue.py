"""What the shop sells: a topic of changes, of which the last for each product counts.

Products are listed, moved to another category, withdrawn (a record without value) and sometimes
listed again. The topic is compacted: sooner or later the broker drops what was replaced. A reader
must not count on that having happened, and ours may read it before or after.
"""

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

TOPIC: Final = "products"
PRODUCT_COUNT: Final = 400
CATEGORIES: Final = (
    "books", "games", "garden", "kitchen", "music", "sports", "toys", "travel",
)  # fmt: skip
MOVED_COUNT: Final = 60
WITHDRAWN_COUNT: Final = 16
RELISTED_COUNT: Final = 4


class Change(NamedTuple):
    """One record of the topic."""

    product: int
    category: int | None
    """None: the product is withdrawn."""

    @property
    def key(self) -> bytes:
        return product_name(self.product).encode()

    @property
    def value(self) -> bytes | None:
        if self.category is None:
            return None
        about = {"name": f"Product {self.product}", "category": CATEGORIES[self.category]}
        return json.dumps(about).encode()


def product_name(product: int) -> str:
    return f"p-{product:04}"


def changes(seed: int) -> list[Change]:
    """All records, in the order in which they are written."""
    rng = np.random.default_rng([seed, 1])
    category_count = len(CATEGORIES)
    first = rng.integers(category_count, size=PRODUCT_COUNT).tolist()
    moved = rng.choice(PRODUCT_COUNT, size=MOVED_COUNT, replace=False).tolist()
    step = rng.integers(1, category_count, size=MOVED_COUNT).tolist()
    # The least wanted ones: products are numbered by how often they are ordered.
    withdrawn = (PRODUCT_COUNT - 1 - 3 * np.arange(WITHDRAWN_COUNT)).tolist()
    return [
        *(Change(product, category) for product, category in enumerate(first)),
        *(
            Change(product, (first[product] + by) % category_count)
            for product, by in zip(moved, step, strict=True)
        ),
        *(Change(product, None) for product in withdrawn),
        *(Change(product, first[product]) for product in withdrawn[:RELISTED_COUNT]),
    ]


def categories_at_end(made: Sequence[Change]) -> list[int | None]:
    """By product: its category after all changes; None when it is not sold any more."""
    last = {change.product: change.category for change in made}
    return [last[product] for product in range(PRODUCT_COUNT)]
