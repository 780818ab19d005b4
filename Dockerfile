# One image for every command of pointsman: `docker run pointsman:0.1.0 --help`. It writes nothing,
# so its root file system can be read-only, and it runs as nobody in particular.
FROM python:3.13-slim AS build
WORKDIR /build
# Packages are what the lock files say, by their hashes, and nothing is built on the way.
COPY deploy/image.lock deploy/build.lock deploy/
RUN python -m venv --without-pip /opt/pointsman \
 && pip --python /opt/pointsman/bin/python install --no-cache-dir --only-binary :all: \
      --require-hashes -r deploy/image.lock \
 && pip install --no-cache-dir --only-binary :all: --require-hashes -r deploy/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY router router
COPY indexer indexer
COPY proto proto
COPY benchmarks benchmarks
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
 && pip --python /opt/pointsman/bin/python install --no-cache-dir --no-deps dist/*.whl

FROM python:3.13-slim
COPY --from=build /opt/pointsman /opt/pointsman
# No home, no download: a tokenizer is read from the folder that is configured, or not at all.
ENV PATH=/opt/pointsman/bin:$PATH \
    HF_HUB_OFFLINE=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["pointsman"]
CMD ["--help"]
