"""Side by side with the peers: same network, same batch, same process, interleaved runs, medians and ratios."""
