package verb

import (
	"fmt"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
)

// AtCommit returns v, the verdict about gs, for a caller that asked for a commit: it is Overtaken if the gateways are to run
// another commit. An empty commit means any. AtCommit is pure.
func AtCommit(gs *v1alpha1.GatewaySync, v Verdict, commit string) Verdict {
	d, err := v1alpha1.DesiredRef(gs, "")
	if commit == "" || err != nil || v.Phase == Overtaken {
		return v
	}
	commit = strings.ToLower(commit)
	is := d.Commit
	switch {
	case is != "":
	case v1alpha1.IsCommit(d.Ref):
		is = strings.ToLower(d.Ref)
	default:
		is = v.Commit
	}
	if is == "" || is == commit {
		return v
	}
	who := "as spec.git.ref says"
	if d.Override || d.Commit != "" {
		who = "asked for by " + d.Asker()
	}
	v.Phase, v.Reason = Overtaken, ""
	v.Message = fmt.Sprintf("the gateways are to run %s at %s (%s) and no longer %s", d.Ref, Short(is), who, Short(commit))
	return v
}
