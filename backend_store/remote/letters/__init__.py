"""Dead letters on their way to another queue, as a gateway moves and encrypts them."""
