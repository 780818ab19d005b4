"""What breaks prefixes, a module for each family: how it is seen in traffic, and how it is mended.

A practice learns from all of the traffic, and ``fix`` then gives the body that a client with the
practice would have sent, or None where this request needs nothing. It touches only what is seen to
vary in this traffic, so that a log without the fault is left alone.
"""
