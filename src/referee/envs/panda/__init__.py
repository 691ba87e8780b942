"""The four tasks of the embedded Panda, and experts that solve them."""
