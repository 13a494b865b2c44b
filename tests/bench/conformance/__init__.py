"""What every method has to do, whatever its paper says. A new name in METHODS is tested too."""
