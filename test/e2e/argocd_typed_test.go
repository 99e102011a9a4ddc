//go:build linux

package e2e

import (
	"regexp"

	"stoker.io/stoker/test/document"
)

// page is the document whose commands are typed here.
const page = "docs/argocd.md"

// The page calls its Application line, as the GatewaySync in it, and its namespace plant.
var (
	application = regexp.MustCompile(`\b(application|terminate-op|actions run) line\b`)
	namespace   = regexp.MustCompile(`(--namespace) plant\b`)
)

// types enters the command of the page that begins so, with the deployment's own names in the place of the page's, and returns
// what it says.
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

// sees enters a command that has to work, and checks that it says this.
func (d *deployment) sees(begin string, wanted ...string) {
	d.t.Helper()
	said, code := d.types(begin)
	if missing := missingFrom(said, wanted...); code != 0 || missing != "" {
		d.t.Errorf("%s: exit code %d; %s", begin, code, missing)
	}
}
