"""What Prometheus and Grafana need to watch servers and gateways: boards, alerts, scraping."""
