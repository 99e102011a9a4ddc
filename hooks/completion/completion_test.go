package completion

import (
	"bytes"
	"context"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

func TestCompletions(t *testing.T) {
	line := &v1alpha1.GatewaySync{}
	line.Name, line.Namespace = "line", "plant"
	line.Spec.Git.Ref = "main"
	line.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "prod", RequireApproval: true}}}
	line.Status.GatewaysReady = "2/2"
	line.Status.History = []v1alpha1.CommitRecord{{Ref: "v1\x1b", Commit: "1f0c2d31f0c2d31f0c2d31f0c2d31f0c2d31f0c2"}}
	line.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "area-1", ProposalState: "Open", Proposal: "url"}, {Name: "area-2"}}
	source := Source{
		GatewaySyncs: func(_ context.Context, all bool) []*v1alpha1.GatewaySync {
			if other := line.DeepCopy(); all {
				other.Namespace = "area"
				return []*v1alpha1.GatewaySync{line, other, line}
			}
			return []*v1alpha1.GatewaySync{line}
		},
		GatewaySync: func(_ context.Context, name string) *v1alpha1.GatewaySync {
			if name == line.Name {
				return line
			}
			return nil
		},
		Contexts: func() []string { return []string{"site"} },
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"name":                          {[]string{"set-ref", ""}, "line\tmain 2/2\n"},
		"ref":                           {[]string{"set-ref", "line", ""}, "main\tspec.git.ref\nv1?\tran ago\n"},
		"ref of an unknown GatewaySync": {[]string{"set-ref", "other", ""}, ""},
		"stage":                         {[]string{"approve", "line", ""}, "prod\tneeds an approval\n"},
		"commit":                        {[]string{"approve", "line", "--to", ""}, "1f0c2d3\tv1?, ago\n"},
		"commit without a name":         {[]string{"approve", "--to", ""}, ""},
		"proposer":                      {[]string{"approve", "line", "--renew", ""}, "area-1\tOpen url\n"},
		"output":                        {[]string{"approve", "line", "--output", ""}, "table\njson\nyaml\nname\n"},
		"namespace":                     {[]string{"approve", "--namespace", ""}, "area\nplant\n"},
		"context":                       {[]string{"approve", "--context", ""}, "site\n"},
	} {
		t.Run(name, func(t *testing.T) {
			root := &cobra.Command{Use: "stoker"}
			root.PersistentFlags().String("namespace", "", "")
			root.PersistentFlags().String("context", "", "")
			for _, use := range []string{"set-ref NAME [REF]", "approve NAME [STAGE]"} { // each with flags that the real program has on several commands
				command := &cobra.Command{Use: use, Run: func(*cobra.Command, []string) {}}
				for _, flag := range []string{"to", "renew", "output"} {
					command.Flags().String(flag, "", "")
				}
				root.AddCommand(command)
			}
			require.NoError(t, Register(root, source))
			var out bytes.Buffer
			root.SetOut(&out)
			root.SetErr(&bytes.Buffer{})
			root.SetArgs(append([]string{cobra.ShellCompRequestCmd}, c.args...))
			require.NoError(t, root.ExecuteContext(t.Context()))
			assert.Equal(t, c.want+":4\n", out.String()) // 4 is cobra.ShellCompDirectiveNoFileComp
		})
	}
	assert.Error(t, Register(&cobra.Command{Use: "stoker"}, source), "Register must fail without the flags --namespace and --context")
}
