"""Models without training them: graphs, profiles, published sizes and times."""
