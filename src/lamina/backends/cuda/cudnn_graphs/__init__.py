"""Building blocks of cuDNN graphs; families import it, never the reverse."""
