// Command kubernetes is etcd and the Kubernetes commands of a cluster in one binary. The name by which it is called chooses
// the command: one link step and one file instead of seven.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() { os.Exit(run(filepath.Base(os.Args[0]))) }

func run(name string) int {
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
		return 0
	case "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
		return 0
	}
	command := commands()[name]
	if command == nil {
		fmt.Fprintf(os.Stderr, "%q is not a name of a Kubernetes command: call this binary by a link named etcd, kubectl, kube-apiserver, …\n", name)
		return 2
	}
	return cli.Run(command())
}

func commands() map[string]func() *cobra.Command {
	return map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 newKubelet,
		"kube-proxy":              proxy.NewProxyCommand,
	}
}
