"""What a job survives, and how soon it goes on."""
