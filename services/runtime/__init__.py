"""What every service runs on: settings, the fleet file, signals, drain, health."""
