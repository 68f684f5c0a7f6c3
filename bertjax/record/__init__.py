"""What a run writes and shows: metrics, journal, terminal, trackers, predictions and report."""
