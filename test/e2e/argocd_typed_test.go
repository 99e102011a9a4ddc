//go:build linux

package e2e

import (
	"regexp"

	"stoker.io/stoker/test/document"
)

// page is the document with the commands of these tests.
const page = "docs/how-to/argocd.md"

// On this page the Application and its GatewaySync are called line, and the namespace plant.
var (
	application = regexp.MustCompile(`\b(application|terminate-op|actions run) line\b`)
	namespace   = regexp.MustCompile(`(--namespace) plant\b`)
)

// types runs the command of the page that starts with begin and returns its output. It replaces the names
// on the page with those of the deployment.
func (d *deployment) types(begin string) (said string, code int) {
	d.t.Helper()
	line := d.lines.Take(d.t, page, begin).Text
	line = application.ReplaceAllString(line, "$1 "+d.namespace)
	line = namespace.ReplaceAllString(line, "$1 "+d.namespace)
	if d.shell == nil {
		programs := map[string]string{"kubectl": d.kubectlPath, "stoker": d.stokerPath, "argocd": d.argo.CLI}
		d.shell = document.NewShell(d.t, d.module, programs, "KUBECONFIG="+d.Kubeconfig(), d.argo.Env)
	}
	return d.shell.Try(d.t, line)
}

// sees runs a command, which must succeed, and checks its output.
func (d *deployment) sees(begin string, wanted ...string) {
	d.t.Helper()
	said, code := d.types(begin)
	if missing := missingFrom(said, wanted...); code != 0 || missing != "" {
		d.t.Errorf("%s: exit code %d; %s", begin, code, missing)
	}
}
