"""Models without training: graphs, profiles, and published sizes and times."""
