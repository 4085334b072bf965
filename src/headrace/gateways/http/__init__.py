"""The HTTP door: health, readiness, metrics. Starlette and uvicorn are loaded once the Kafka door is open."""
