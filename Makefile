# `make help` lists the targets. Nothing here needs more than Go and git; tools are pinned and built from modules.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BIN       ?= bin
FUZZTIME  ?= 20s
BENCH     ?=
LDFLAGS   := -s -w -X main.version=$(VERSION)

GOLANGCI  := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# The race detector needs cgo and a C compiler.
RACE := $(shell command -v $${CC:-gcc} >/dev/null 2>&1 && echo -race)

.PHONY: help build demo test e2e lint fuzz bench generate

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build the binaries into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./agent ./injector
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/stoker ./hooks

demo: ## a gateway, a git server and the agent on this machine: see what it does (KEEP=1 leaves it running)
	@go run ./test/demo

test: ## unit, integration and scenario tests
	@$(if $(RACE),,echo 'no C compiler: the tests run without -race')
	go vet ./...
	@go run ./test/cluster build >/dev/null
	CGO_ENABLED=$(if $(RACE),1,0) go test $(RACE) -timeout 20m ./...
	cd test/crd && go test -count=1 -timeout 10m ./...
	cd test/charts && go test -count=1 -timeout 20m ./...

e2e: ## the chart, agents and gateways in pods, on a Kubernetes with nodes; needs root, and Debian or what is like it
	go test -tags e2e -count=1 -p 1 -timeout 20m ./test/cluster/keeper ./test/cluster/kubetest
	STOKER_E2E=1 go test -count=1 -parallel 5 -timeout 25m -v ./test/e2e

lint: ## golangci-lint with .golangci.yml
	$(GOLANGCI) run ./...

fuzz: ## every fuzz target for FUZZTIME (20s)
	@set -e; for d in $$(git grep -l --untracked 'func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do \
	  for f in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\)(.*/\1/p' $$d/*_test.go | sort -u); do \
	    echo "== ./$$d $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime=5x ./$$d; \
	  done; done

bench: ## measure against git, checkout and rsync, then fleets, and print the goals (BENCH='-sizes S -n 1' or 'fleet -sizes 1,10' for a part)
	go run ./test/bench $(BENCH)
	$(if $(BENCH),,go run ./test/bench fleet)

generate: ## CRD, deepcopy and generated documentation; leaves a clean tree where nothing changed
	go generate ./...
