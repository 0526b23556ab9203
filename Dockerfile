# Two images: kproxy (--target kproxy), and spark with its examples.
FROM python:3.11-slim-bookworm AS base
RUN python3 -m venv /opt/kproxy && groupadd --gid 10001 kproxy \
 && useradd --uid 10001 --gid 10001 --home-dir /data --shell /usr/sbin/nologin kproxy \
 && install -d -m 0700 -o kproxy -g kproxy /data
ENV PATH=/opt/kproxy/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app

FROM base AS kproxy
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kproxy" \
      org.opencontainers.image.description="Millions of queues behind the Kafka protocol" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY pyproject.toml constraints.txt README.md LICENSE pyspark_kproxy.py ./
COPY kproxy kproxy
RUN pip install -q --no-cache-dir -c constraints.txt ".[console]"
USER kproxy
VOLUME /data
# Kafka's protocol; metrics and health. Nothing is written but to /data: --read-only works.
EXPOSE 9092 9644
ENV KPROXY_HTTP_LISTEN=0.0.0.0:9644
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["kproxy", "health", "--http"]
ENTRYPOINT ["kproxy"]
CMD ["serve", "--listen", "0.0.0.0:9092", "--advertise", "localhost:9092", "--data-dir", "/data"]

FROM base AS jars
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends make maven openjdk-17-jdk-headless
COPY Makefile ./
COPY tools tools
RUN make spark-jars

FROM base AS spark
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml constraints.txt README.md LICENSE pyspark_kproxy.py ./
COPY kproxy kproxy
RUN pip install -q --no-cache-dir -c constraints.txt '.[spark]'
COPY --from=jars /app/.tools/spark-jars .tools/spark-jars
COPY spark_examples spark_examples
RUN chown kproxy /app
USER kproxy
CMD ["sleep", "infinity"]
