# `make help` lists the targets. CONTRIBUTING.md says what they need. Tools are pinned and built from modules.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BIN       ?= bin
FUZZTIME  ?= 20s
BENCH     ?=
E2E       ?=
LDFLAGS   := -s -w -X main.version=$(VERSION)

GOLANGCI  := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULN    := go run golang.org/x/vuln/cmd/govulncheck@v1.9.0
GOTESTSUM := go run gotest.tools/gotestsum@v1.13.0
FORMAT    := pkgname-and-test-fails

space := $() $()

# $(call tests,FILES) is a pattern for -run that matches the tests of these files.
tests = ^($(shell grep -ho '^func Test[A-Za-z0-9]*' $(1) | cut -c6- | paste -sd '|'))$$

# make test runs all packages but these, without an API server and with the short form of long tests.
APART := ./test/bench/... ./test/cluster/... ./test/fleet ./test/e2e/...

# The race detector needs cgo and a C compiler, and takes many times as long. It checks what starts goroutines. BUSY are those of them that
# keep a processor and a disk busy: they come last and in short form, so that continuous integration can run pods beside them. PLANE are
# the other packages whose tests use an API server.
RACE  := $(shell command -v $${CC:-gcc} >/dev/null 2>&1 && echo -race)
PARTS := agent api hooks injector internal receiver
START := '^\s+go (func|[a-z]+[.(])|\.Go\('
dirs   = $(sort $(addprefix ./,$(patsubst %/,%,$(dir $(1)))))
RACED  = $(call dirs,$(shell grep -rlE --include='*.go' --exclude='*_test.go' $(START) $(PARTS)))
PLANE  = $(filter-out $(RACED),$(call dirs,$(shell grep -rlE --include='*_test.go' 'test/(cluster/kubetest|fleet/plant)"' $(PARTS) test/bench test/cluster test/document test/fleet)))
BUSY  := ./agent/archive ./agent/disk ./agent/propose ./agent/repo/wire ./agent/sync

# LONG are the tests that -short shortens, and those with an API server that exclude the race detector, each as its folder and name. They
# run whole, without the race detector.
LONG   = $(shell git ls-files --cached --others --exclude-standard $(patsubst %,'%/*_test.go',$(PARTS) test/scenario) | xargs awk ' \
  FNR == 1 {plain = 0; folder = FILENAME; sub(/\/[^\/]*$$/, "", folder)} /^\/\/go:build.*!race/ {plain = 1} /^func / {name = $$2; sub(/[^A-Za-z0-9_].*/, "", name)} \
  name ~ /^Test/ && (/testing\.Short|[^A-Za-z.]short[A-Z]/ || plain && /kubetest\.Control/) {print "./" folder, name}')

# Without cgo, as in releases: with it, everything that uses the network would be compiled twice, because only the race detector needs cgo.
export CGO_ENABLED ?= 0

# By default, a program with the race detector sleeps for a second before it exits, and the tests start hundreds of programs.
export GORACE ?= atexit_sleep_ms=50

# Most packages spend their time waiting, so run two for each processor, the slowest first. Tests with heavy dependencies are
# separate modules. Argo CD 3 needs a newer Go than the rest, which GOTOOLCHAIN=auto downloads as a module; STOKER_ARGOCD=2 runs the
# tests of Argo CD 2 instead.
ATATIME := -p $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))
MODULES := internal/release test/gitea test/forge test/prometheus test/ui test/charts test/crd test/storage test/registry $(if $(filter 2,$(STOKER_ARGOCD)),test/argocd,test/argocd/v3)
FIRST   := ./agent/follow ./internal/configsync ./hooks ./agent/lead ./injector ./test/fleet ./test/bench/fleet

# Tests build faster without vet, which make lint runs except in other modules, and without symbols, which are for debuggers.
QUICK := -vet=off -ldflags='-s -w'

# $(call gotest,FLAGS,PACKAGES). If RERUN names a folder, a failed test runs once more, and a file there lists it. A data race or
# more than six failures in one run of go test fail at once.
gotest = $(if $(RERUN),$(GOTESTSUM) --format $(FORMAT) --rerun-fails=1 --rerun-fails-max-failures=6 \
  --rerun-fails-run-root-test --rerun-fails-abort-on-data-race --rerun-fails-report $(RERUN)/$$BASHPID.txt --packages='$(strip $(2))' -- $(1),go test $(1) $(2))
both   = failed=0; ($(strip $(1))) || failed=1; ($(strip $(2))) || failed=1; exit $$failed
raced  = CGO_ENABLED=$(if $(RACE),1,0) $(call gotest,$(QUICK) $(RACE) -timeout 40m $(1),$(2))

.PHONY: help build images release-artifacts reproduce demo test test-cluster test-api test-raced test-plane test-kubernetes test-oldest test-busy test-plain test-modules e2e lint fuzz bench generate

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build the binaries into bin/
	go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./agent ./injector ./receiver
	go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/stoker ./hooks

images: ## build the images for amd64 and arm64 with Go alone, and push them (REGISTRY=registry.example.com/stoker), or write those of this machine's platform to a file (TAR=images.tar)
	@cd internal/release && GOWORK=off go run . images $(if $(REGISTRY),--registry '$(REGISTRY)') $(if $(TAR),--tar '$(abspath $(TAR))') $(if $(findstring command,$(origin VERSION)),--version '$(VERSION)')

release-artifacts: ## everything of a release in dist/, for six platforms: images, chart, manifests, command line, SPDX lists, sums, bundle (VERSION=0.1.0, KEY=key.pem, PLATFORMS=linux/amd64)
	@cd internal/release && GOWORK=off go run . artifacts $(if $(findstring command,$(origin VERSION)),--version '$(VERSION)') $(if $(KEY),--key '$(abspath $(KEY))') $(if $(PLATFORMS),--platforms '$(PLATFORMS)')

reproduce: ## make the release twice, from two clones in two folders, and compare all sums (PLATFORMS=linux/amd64)
	@cd internal/release && GOWORK=off go run . reproduce $(if $(findstring command,$(origin VERSION)),--version '$(VERSION)') $(if $(PLATFORMS),--platforms '$(PLATFORMS)')

demo: ## run two gateways with their agents, and a git server, on this machine (KEEP=1 keeps them running)
	@go run ./test/demo

# Compile the programs first: tests build them, too, and would compile the same packages at the same time.
test: ## the tests that every commit passes: minutes, no Kubernetes, no root
	go list -deps -export ./agent ./hooks ./receiver >/dev/null
	go test -short $(QUICK) $(ATATIME) -timeout 30m ./agent/sync ./agent/repo ./agent/disk ./test/scenario \
	  $(shell comm -23 <(go list ./... | sort) <(go list $(APART) | sort))

test-cluster: test-api test-busy test-plain test-modules test-oldest ## what make test leaves out: the race detector, an API server, fleets, long tests, the chart, Argo CD's code

# One after the other: tests of the second part count requests, and an agent whose sync takes long reports more often.
test-api: test-raced test-plane

test-raced: test-kubernetes
	@$(if $(RACE),,echo 'no C compiler: the tests run without -race')
	$(call raced,$(ATATIME),$(filter $(RACED),$(FIRST)) $(filter-out $(BUSY) $(FIRST),$(RACED)))

test-plane: test-kubernetes
	$(call gotest,$(QUICK) $(ATATIME) -timeout 30m,$(filter $(PLANE),$(FIRST)) $(filter-out $(FIRST),$(PLANE)))

test-kubernetes:
	@go run ./test/cluster build $(if $(STOKER_KUBERNETES),-kubernetes $(STOKER_KUBERNETES)) >/dev/null

test-busy:
	$(if $(RACE),$(call raced,-short $(ATATIME),$(BUSY)))

# The parts of a target all run, even if one fails.
test-plain:
	$(call both,$(call gotest,$(QUICK) $(ATATIME) -timeout 30m -run '^($(subst $(space),|,$(sort $(filter Test%,$(LONG)))))$$',$(sort $(filter ./%,$(LONG)))),\
	  $(call gotest,$(QUICK) $(ATATIME) -timeout 30m,$(filter-out $(patsubst ./%,stoker.io/stoker/%,$(RACED) $(PLANE)) %/e2e %/e2e/%,$(shell go list $(APART)))))

test-modules:
	set -e; for module in $(MODULES); do (cd $$module && GOWORK=off GOTOOLCHAIN=auto $(call gotest,-ldflags='-s -w' -count=1 -timeout 40m,./...)); done

# What depends most on the version of the API server: its fields and patches, the chart with its policies, webhooks, and every object of the pages
# and examples.
OLDEST := PodsAreInjected|InjectedPodsAreValid|PodsStartWithoutAnInjector|RequireAnnotation|InjectionLabelOverridesRequire|DryRunChangesNothing|RepairStatefulSet|RepairDeployment|MissingService|StatusWithoutALead|ReplicasShareOneCertificate|$\
  OtherCluster|RightsOfCaller|Inventory|Recreate|AdoptionOfKubectlApply|AdoptionRemovesFields|AddedFields|ObjectsChangeTheirOwner|FieldsOfOthers|ProgramFollowsGit|ProgramDrift|RequestedRef|$\
  ApplyCreatesChangesAndPrunes|ForeignObject|PruneSparesOthers|ImmutableFieldIsNamed|DriftIsRepaired|NewSecretIsNotDrift|ProgramStaysWithinRights|KindsAndNamespacesComeFirst|UnhealthyObjects|StatusAfterEachRun|$\
  WebhookPageCommands|AcceptedRequestsSurviveShutdown|ObjectsOfDocuments
OLDEST_CHART := SettersCannotChangeFieldOwners|SetterRequests|Approvals|HelmLifecycle|Policies|UnknownFieldOfGatewaySync|ImpersonatedDeployers|InjectorBindsAgentRoleOnly|$\
  ReceiverRunsWithChartRights|NotifierInListedNamespaces|ThirdPartyObjectsAreValid|OlderKubernetesIsRejected|SecretLabelPolicy|SyncTargetPolicy|ConfigSyncRequestRights|$\
  SetterAnnotations|SettersChangeRequestsOnly|APIServerAcceptsChart|WebhookConfigurationHasNoDefaults|CABundleSurvivesApply|PodsStartWithoutInjector|PolicyFieldsExist
test-oldest: export STOKER_KUBERNETES = $(shell sed -n 's/.*OldestKubernetes  = "\(.*\)"/\1/p' test/cluster/build/programs.go)
test-oldest: test-kubernetes
	$(call both,$(call gotest,$(QUICK) -count=1 $(ATATIME) -timeout 30m -run '^Test($(OLDEST))$$',./injector ./internal/configsync ./receiver ./test/document),\
	  cd test/charts && GOWORK=off $(call gotest,-ldflags='-s -w' -count=1 -timeout 30m -run '^Test($(OLDEST_CHART))$$',./...))

e2e: FORMAT = standard-verbose
e2e: ## the chart, agents and gateways in pods; needs root, and Debian or similar (E2E='Argo CD' runs only these scenarios)
	$(call both,$(if $(E2E),true,go test -tags e2e -count=1 -p 1 -timeout 20m -run '$(call tests,test/cluster/*/*_e2e_test.go)' ./test/cluster/keeper),\
	  STOKER_E2E=$(if $(E2E),some,all) $(call gotest,-count=1 -parallel 20 -timeout 50m -v $(if $(E2E),-run 'Fleet/(side by side|$(E2E))/$(E2E)'),./test/e2e))

lint: ## golangci-lint, and the rules of test/rules for language and size
	$(GOLANGCI) run ./...
	@set -o pipefail; go test -count=1 -run '^Test(Language|Structure|Budget)$$' -v ./test/rules | grep -v "^=== "

.PHONY: vulnerabilities
# Without symbols, govulncheck reports what a program links, not what it calls.
vulnerabilities: LDFLAGS :=
vulnerabilities: BIN     := .cache/vulnerabilities
vulnerabilities: build ## fail if the source or the built programs call code with a known vulnerability; needs the network
	$(GOVULN) ./...
	set -e; for program in $(BIN)/*; do $(GOVULN) -mode binary $$program; done

fuzz: ## every fuzz target for FUZZTIME (20s)
	@set -e; for d in $$(git grep -l --untracked 'func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do \
	  for f in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\)(.*/\1/p' $$d/*_test.go | sort -u); do \
	    echo "== ./$$d $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime=5x ./$$d; \
	  done; done

bench: ## compare with git, checkout and rsync; measure fleets, proposals, safe changes, pages and ConfigSyncs; print the goals (BENCH='-sizes S -n 1', 'fleet', 'proposals', 'safe', 'observe' or 'config' runs a part)
	go run ./test/bench $(BENCH)
	$(if $(BENCH),,go run ./test/bench proposals)
	$(if $(BENCH),,go run ./test/bench safe)
	$(if $(BENCH),,go run ./test/bench fleet)
	$(if $(BENCH),,go run ./test/bench observe)
	$(if $(BENCH),,go run ./test/bench config)

generate: ## CRDs, deepcopy, generated documentation and kustomize/; if nothing changed, the tree stays clean
	go generate ./...
	go test -count=1 -run '^TestReference' ./hooks -update
	cd test/charts && GOWORK=off go test -count=1 -run '^TestKustomizeIsGenerated$$' . -update
