"""What a gateway knows of a metadata service in another process: queues, keys and tenants, cached."""
