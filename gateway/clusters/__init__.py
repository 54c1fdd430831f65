"""What a gateway knows of its clusters of backends: settings, health, recovery, and who provides servers."""
