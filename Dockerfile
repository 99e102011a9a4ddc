# Images of the project's parts, one target each, for releases. Nothing is fetched but Go modules and the two base images.
#
#   docker build --target injector --tag ghcr.io/stoker-io/injector:0.1.0 --build-arg VERSION=0.1.0 .
#   docker buildx build --platform linux/amd64,linux/arm64 --target agent --tag … --push .
#
# A release pins both base images by digest (--build-arg GO=…@sha256:…, BASE=…@sha256:…): a tag of theirs moves, and two
# builds of one commit would differ. The digests stand in the release's notes and not here, where nobody would renew them.
ARG GO=docker.io/library/golang:1.26
ARG BASE=gcr.io/distroless/static-debian12:nonroot

# The compiler runs on the builder's own platform, whatever the image is for.
FROM --platform=$BUILDPLATFORM ${GO} AS build
ARG TARGETOS=linux
ARG TARGETARCH
ARG VERSION=dev
ENV CGO_ENABLED=0 GOTOOLCHAIN=local GOCACHE=/cache/build GOMODCACHE=/cache/modules
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/cache \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /out/ ./agent ./injector ./receiver && \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /out/stoker ./hooks

# A static program, certificate authorities and time zones: no shell, no package manager, no other program.
FROM ${BASE} AS base
LABEL org.opencontainers.image.source="https://github.com/stoker-io/stoker" org.opencontainers.image.licenses="Apache-2.0"
# By number, so that runAsNonRoot can be checked. A gateway's pod runs the agent as the gateway's own user, whichever that
# is: it needs no entry in a list of users and no home.
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

# The verbs, for Jobs: `args: [wait, line]`.
FROM base AS hooks
COPY --from=build /out/stoker /stoker
ENTRYPOINT ["/stoker"]
