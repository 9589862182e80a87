# A server on the CPU; docs/how-to/container.md explains it.
FROM python:3.11-slim

# For a smaller image, name an index with CPU builds of torch: --build-arg TORCH_INDEX=URL
ARG TORCH_INDEX=""

WORKDIR /opt/offrec
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c constraints.txt torch \
 && pip install --no-cache-dir -c constraints.txt '.[serve]'

# The server never runs as root, and writes only to its decision log and its lists.
RUN useradd --system --uid 10001 offrec \
 && mkdir -p /runs /decisions /lists \
 && chown offrec /decisions /lists
USER offrec
VOLUME ["/decisions", "/lists"]
EXPOSE 8000

HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]

# OFFREC_TOKEN must be set: addresses other than loopback need a token.
ENTRYPOINT ["offrec", "serve", "--host", "0.0.0.0", "--port", "8000", "--log", "/decisions", "--lists", "/lists"]
CMD ["live=/runs/live"]
