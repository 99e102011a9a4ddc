# The programs of a release as images, one target for each, for builds with Docker. `make images` builds those of a release without it. The build
# downloads only Go modules and the two base images.
#
#   docker build --target injector --tag ghcr.io/stoker-io/injector:0.1.0 --build-arg VERSION=0.1.0 .
#   docker buildx build --platform linux/amd64,linux/arm64 --target agent --tag … --push .
#
# Pin both base images by digest (--build-arg GO=…@sha256:…, BASE=…@sha256:…): their tags move, so that two builds of one commit could differ.
ARG GO=docker.io/library/golang:1.26
ARG BASE=gcr.io/distroless/static-debian12:nonroot

# Cross-compile: the compiler runs on the platform of the builder, not on that of the image.
FROM --platform=$BUILDPLATFORM ${GO} AS build
ARG TARGETOS=linux
ARG TARGETARCH
ARG VERSION=dev
ENV CGO_ENABLED=0 GOTOOLCHAIN=local GOCACHE=/cache/build GOMODCACHE=/cache/modules
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/cache \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /out/ ./agent ./injector ./receiver && \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /out/stoker ./hooks && \
    cp LICENSE /out/ && (cd internal/release && go run . licences) >/out/THIRD_PARTY.txt

# An image contains one static program and its licences, CA certificates and time zones; no shell and no package manager.
FROM ${BASE} AS base
COPY --from=build /out/LICENSE /out/THIRD_PARTY.txt /
LABEL org.opencontainers.image.source="https://github.com/stoker-io/stoker" org.opencontainers.image.licenses="Apache-2.0"
# A number, so that the kubelet can check runAsNonRoot. In the pod of a gateway, the agent runs as the user of the gateway: it needs
# neither an entry in /etc/passwd nor a home directory.
USER 65532:65532

FROM base AS agent
COPY --from=build /out/agent /agent
ENTRYPOINT ["/agent"]

FROM base AS injector
COPY --from=build /out/injector /injector
ENTRYPOINT ["/injector"]

FROM base AS receiver
COPY --from=build /out/receiver /receiver
ENTRYPOINT ["/receiver"]

# The CLI, for Jobs (`args: [wait, line]`), the notifier and stoker config run.
FROM base AS hooks
COPY --from=build /out/stoker /stoker
ENTRYPOINT ["/stoker"]
