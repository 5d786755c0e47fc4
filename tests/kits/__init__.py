"""What tests share: worlds, stories and drivers, by the package they are for."""
