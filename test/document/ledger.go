package document

import "regexp"

// Entry assigns the commands of a document that match a pattern to a test. The first entry that matches a command applies.
type Entry struct {
	Document string
	Heading  string // a heading of the document; "" for all
	Lines    *regexp.Regexp
	Test     string // package and function
}

// Fits reports whether the entry matches a command.
func (e Entry) Fits(c Command) bool {
	return e.Document == c.Document && (e.Heading == "" || e.Heading == c.Heading) && e.Lines.MatchString(c.Text)
}

// The tests that run commands.
const (
	byChart    = "test/charts TestDocumentedCommands"
	byNodes    = "test/e2e TestFleetOnCluster"
	byFleet    = "test/fleet TestDocumentedCommands"
	bySingle   = "test/fleet TestExampleSingleGateway"
	byBack     = "test/fleet TestAutomaticRollback"
	byPush     = "hooks/push TestDocumentedCommands"
	byRegistry = "test/fleet TestRegistry"
	byServices = "test/fleet TestExampleServices"
	byAreas    = "test/fleet TestExampleSiteAndAreas"
	byDaemon   = "hooks TestDaemonCommands"
	byWatch    = "hooks TestWatchedStatus"
	byContexts = "hooks TestStatusOfSeveralSites"
	byExample  = "test/fleet TestExampleStages"
	byReplicas = "test/fleet TestExampleReplicatedFrontends"
	byArgoCD   = "hooks TestArgoCDPageCommands"
	byStages   = "hooks TestStagesPageCommands"
	byConfig   = "hooks TestConfigPageCommands"
	byMigrate  = "hooks TestMigrationPageCommands"
	byCreate   = "hooks TestCreateCommands"
	byKargo    = "hooks/kargo TestDocumentedCommands"
	byAlone    = "test/scenario TestDocumentedCommands"
	byGateway  = "test/gateway TestREADMEExamplesWork"
	byMake     = "test/document TestMakeTargets"
	byRelease  = "internal/release TestRelease"
	byKey      = "test/document TestDocumentedHostKeys"
	bySigned   = "test/scenario TestSignedCommitsPage"
	byUI       = "test/ui TestDocumentedCommands"
	bySigning  = "agent/repo TestDocumentedSigningKey"
)

// NewEntry returns an entry for the commands of a document that match a regular expression.
func NewEntry(document, lines, test string) Entry {
	return Entry{Document: document, Lines: regexp.MustCompile(lines), Test: test}
}

func under(document, heading, test string) Entry {
	return Entry{Document: document, Heading: heading, Lines: regexp.MustCompile(``), Test: test}
}

// Ledger assigns every command. Commands that need a kubelet belong to the tests with nodes; the others need only an API
// server, or less.
var Ledger = []Entry{
	NewEntry("README.md", `^make `, byMake),
	NewEntry("README.md", `^helm test |^stoker create | -f examples/kubernetes/statefulset.yaml$| --watch$`, byNodes),
	NewEntry("README.md", `^stoker `, byFleet),
	NewEntry("README.md", ``, byChart),
	NewEntry("charts/stoker/README.md", ``, byChart),
	NewEntry("docs/how-to/air-gap.md", `^make `, byMake),
	NewEntry("docs/how-to/air-gap.md", `^helm `, byNodes),
	NewEntry("docs/how-to/air-gap.md", ``, byRelease),

	NewEntry("docs/start/tutorial.md", ``, byAlone),
	NewEntry("docs/start/tutorial-kubernetes.md", `^REPOSITORY=|^make build|^bin/stoker `, byCreate),
	NewEntry("docs/start/tutorial-kubernetes.md", ``, byChart),
	NewEntry("docs/how-to/rollback.md", `^stoker snapshots |/agent snapshots export `, byNodes),
	NewEntry("docs/how-to/auto-rollback.md", ``, byBack),
	NewEntry("docs/how-to/rollback.md", ``, byFleet),
	NewEntry("docs/how-to/audit.md", ``, byNodes),
	NewEntry("docs/how-to/stages.md", ``, byStages),
	NewEntry("docs/how-to/windows.md", ``, byStages),
	NewEntry("docs/reference/agent.md", ``, byAlone),
	NewEntry("docs/how-to/argocd.md", `^kubectl logs |^argocd `, byNodes),
	under("docs/how-to/argocd.md", "When a sync hangs or fails", byNodes),
	under("docs/how-to/argocd.md", "Gateways that do not start", byNodes),
	NewEntry("docs/how-to/argocd.md", ``, byArgoCD),
	under("docs/reference/cli.md", "stoker migrate", byMigrate),
	NewEntry("docs/reference/cli.md", `^stoker create `, byCreate),
	under("docs/reference/cli.md", "stoker create gatewaysync", byCreate),
	NewEntry("docs/reference/cli.md", `^stoker bundle `, byRelease),
	NewEntry("docs/reference/cli.md", `^stoker (check|diff|snapshots)| --audit | /manifest/`, byNodes),
	NewEntry("docs/reference/cli.md", `^stoker config run`, byDaemon),
	NewEntry("docs/reference/cli.md", `^stoker config `, byConfig),
	NewEntry("docs/how-to/config-run.md", ``, byNodes),
	NewEntry("docs/how-to/config.md", ``, byConfig),
	under("docs/reference/cli.md", "stoker ui", byUI),
	under("docs/reference/cli.md", "stoker approve", byStages),
	under("docs/reference/cli.md", "stoker notify", byDaemon),
	NewEntry("docs/how-to/ui.md", `^stoker status .*--contexts`, byContexts),
	NewEntry("docs/how-to/ui.md", `^stoker status `, byWatch),
	NewEntry("docs/how-to/ui.md", `^kubectl `, byChart),
	NewEntry("docs/how-to/ui.md", ``, byUI),
	NewEntry("docs/reference/cli.md", ` --watch$`, byWatch),
	NewEntry("docs/reference/cli.md", `^stoker retry `, byBack),
	NewEntry("docs/reference/cli.md", `^stoker push `, byPush),
	NewEntry("docs/reference/cli.md", ``, byFleet),
	NewEntry("docs/how-to/registry.md", `^stoker push `, byPush),
	NewEntry("docs/how-to/registry.md", ``, byRegistry),
	NewEntry("docs/how-to/git.md", `^kubectl `, byChart),
	NewEntry("docs/how-to/git.md", ``, byKey),
	NewEntry("docs/how-to/pull-requests.md", `^kubectl `, byChart),
	under("docs/how-to/installation.md", "From a repository to a GatewaySync", byCreate),
	NewEntry("docs/how-to/installation.md", `^make `, byMake),
	NewEntry("docs/how-to/kustomize.md", ` rollout status `, byNodes),
	NewEntry("docs/how-to/kustomize.md", ``, byChart),
	NewEntry("docs/how-to/installation.md", `^helm test | rollout status `, byNodes),
	NewEntry("docs/how-to/installation.md", ``, byChart),
	NewEntry("docs/how-to/kargo.md", `^stoker `, byFleet),
	NewEntry("docs/how-to/kargo.md", ``, byKargo),
	NewEntry("docs/how-to/kargo-argocd.md", `^stoker `, byFleet),
	NewEntry("docs/how-to/kargo-argocd.md", ``, byKargo),
	NewEntry("docs/how-to/kargo-verification.md", ``, byKargo),
	NewEntry("docs/reference/lost-and-found.md", ``, byAlone),
	under("docs/how-to/migration.md", "From an earlier product of the same group", byMigrate),
	NewEntry("docs/how-to/migration.md", ``, byChart),
	NewEntry("docs/how-to/operations.md", `^helm test |/proxy/state$`, byNodes),
	NewEntry("docs/how-to/operations.md", ``, byChart),
	NewEntry("docs/how-to/uninstall.md", ``, byChart),
	NewEntry("docs/internals/performance.md", ``, byMake),
	NewEntry("docs/internals/security.md", ``, byChart),
	NewEntry("docs/how-to/pull-requests.md", ``, byFleet),
	NewEntry("docs/reference/status.md", ``, byFleet),
	NewEntry("docs/how-to/troubleshooting.md", `^curl `, byAlone),
	NewEntry("docs/how-to/troubleshooting.md", `^stoker `, byFleet),
	NewEntry("docs/how-to/troubleshooting.md", ``, byNodes),
	NewEntry("docs/how-to/notifications.md", ``, byChart),
	NewEntry("docs/how-to/signed-commits.md", `^kubectl `, byChart),
	under("docs/how-to/signed-commits.md", "Sign the changes of gateways", bySigning),
	NewEntry("docs/how-to/signed-commits.md", ``, bySigned),
	NewEntry("docs/how-to/validation.md", `^stoker `, byCreate),
	NewEntry("docs/how-to/validation.md", ``, byChart),
	NewEntry("docs/how-to/webhooks.md", ``, byFleet),

	NewEntry("examples/single/README.md", `^stoker `, bySingle),
	NewEntry("examples/single/README.md", ``, byFleet),
	NewEntry("examples/services/README.md", `^stoker `, byServices),
	NewEntry("examples/services/README.md", ``, byFleet),
	NewEntry("examples/areas/README.md", `^stoker `, byAreas),
	NewEntry("examples/areas/README.md", ``, byFleet),
	NewEntry("examples/frontends/README.md", `^stoker `, byReplicas),
	NewEntry("examples/frontends/README.md", ``, byFleet),
	NewEntry("examples/stages/README.md", `^stoker `, byExample),
	NewEntry("examples/stages/README.md", ``, byFleet),
	NewEntry("examples/pull-requests/README.md", ``, byFleet),
	NewEntry("examples/kargo/README.md", ``, byKargo),
	NewEntry("examples/kubernetes/README.md", ``, byChart),
	NewEntry("examples/quickstart/README.md", ``, byAlone),
	NewEntry("test/gateway/README.md", ``, byGateway),
}

// TestOf returns the test that runs a command, as in Entry.Test, or "" if the ledger has no entry for the command.
func TestOf(c Command) string {
	for _, e := range Ledger {
		if e.Fits(c) {
			return e.Test
		}
	}
	return ""
}
