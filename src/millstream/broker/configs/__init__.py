"""A broker's settings: files, dynamic changes, and how requests describe and alter them."""
