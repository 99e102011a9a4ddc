package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/agents/agentstest"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/render"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status/statustest"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

func TestMain(m *testing.M) {
	builder.Main(render.Functions())
	testscript.Main(program.M{Tests: kubetest.M{M: m}}, map[string]func(){"stoker": main, "kubectl-stoker": main})
}

// atOnce disables the sleep of one second at exit of programs built with the race detector. The scripts run hundreds of them.
const atOnce = "atexit_sleep_ms=0"

// Each script runs in its own namespace, with a kubeconfig for it. In addition to the commands of testscript there are
//
//	apply FILE           applies objects; $NS, and NS in "namespace: NS}", stand for the namespace
//	lead NAME FILE       writes the status of a GatewaySync, as the lead does; ${NOW}, ${OVER} and ${GENERATION} stand for its requested-at,
//	                     its requested-over and its generation, ${TIP} and ${GOOD} for environment variables,
//	                     and the outcome follows from the rest unless FILE has one
//	leave NAME           releases the lock of the lead, as the last agent does when it ends
//	delete NAME          deletes a GatewaySync
//	powers VERB          waits until the user of the context powerless may use this verb on the GatewaySync plant
//	agent POD[:PORT[/PATH]] FILE COMMIT  sets the response to /state/PATH on a port of a pod, 8082 by default, in the context proxied;
//	                     in FILE, COMMIT stands for the content of the file COMMIT
//	execute POD FILE ARG…  makes a pod write FILE when it executes /agent with these arguments, and fail with 1 for others, in the context proxied
//	asked NAME           waits until a GatewaySync has a request that its status has not handled
//	read NAME            waits until a command read a GatewaySync in the context proxied
//	fill FILE            expands $WORK and $NS in a file
//	keep NAME FILE       stores the content of a file in an environment variable
//	exits CODE COMMAND…  runs a command and expects this exit code
func TestCommands(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
	cluster.Apply(t, "testdata/applications.yaml")
	proxy := agentstest.New(t, cluster)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			outer, ok := env.T().(testing.TB)
			if !ok {
				return errors.New("the script has no test")
			}
			namespace := cluster.Namespace(outer)
			env.Vars = append(env.Vars, gitserver.Env()...)
			env.Setenv("GORACE", atOnce)
			env.Setenv("GIT_AUTHOR_DATE", "1735689600 +0000")
			env.Setenv("GIT_COMMITTER_DATE", "1735689600 +0000")
			env.Setenv("NS", namespace)
			env.Setenv("KUBECONFIG", filepath.Join(env.WorkDir, "kubeconfig"))
			file := filepath.Join(env.WorkDir, "kubeconfig")
			if err := writeKubeconfig(cluster.Kubeconfig(), file, namespace, cluster.As(outer, namespace, "default", "").BearerToken); err != nil {
				return err
			}
			return proxy.Kubeconfig(file, namespace)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"apply": func(ts *testscript.TestScript, _ bool, args []string) {
				cluster.ApplyYAML(t, ts.Getenv("NS"), strings.NewReplacer("namespace: NS}", "namespace: "+ts.Getenv("NS")+"}", "$NS", ts.Getenv("NS")).Replace(ts.ReadFile(args[0])))
			},
			"lead": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(lead(t.Context(), cluster, ts.Getenv("NS"), args[0], strings.NewReplacer("${TIP}", ts.Getenv("TIP"), "${GOOD}", ts.Getenv("GOOD")).Replace(ts.ReadFile(args[1]))))
			},
			"leave": func(ts *testscript.TestScript, _ bool, args []string) {
				client, err := dynamic.NewForConfig(cluster.RESTConfig())
				ts.Check(err)
				ts.Check(setLock(t.Context(), kube.SyncTargets(client, ts.Getenv("NS")), args[0], ""))
			},
			"delete": func(ts *testscript.TestScript, _ bool, args []string) {
				client, err := dynamic.NewForConfig(cluster.RESTConfig())
				ts.Check(err)
				ts.Check(kube.GatewaySyncs(client, ts.Getenv("NS")).Delete(t.Context(), args[0], metav1.DeleteOptions{}))
			},
			"powers": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(powers(t.Context(), cluster.Client(t), ts.Getenv("NS"), args[0]))
			},
			"asked": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(asked(t.Context(), cluster, ts.Getenv("NS"), args[0]))
			},
			"agent": func(ts *testscript.TestScript, _ bool, args []string) {
				commit := strings.TrimSpace(ts.ReadFile(args[2]))
				proxy.Answer(ts.Getenv("NS"), args[0], strings.ReplaceAll(ts.ReadFile(args[1]), "COMMIT", commit))
			},
			"execute": func(ts *testscript.TestScript, _ bool, args []string) {
				answer, want := ts.ReadFile(args[1]), append([]string{"/agent"}, args[2:]...)
				proxy.Execute(ts.Getenv("NS"), args[0], func(command []string, stdout, stderr io.Writer) int {
					if !slices.Equal(command, want) {
						fmt.Fprintf(stderr, "unexpected: %q", command)
						return 1
					}
					_, _ = io.WriteString(stdout, answer) // the client may be gone
					return 0
				})
			},
			"fill": func(ts *testscript.TestScript, _ bool, args []string) {
				text := strings.NewReplacer("$WORK", ts.Getenv("WORK"), "$NS", ts.Getenv("NS")).Replace(ts.ReadFile(args[0]))
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
			},
			"keep": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
			},
			"read": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
					return proxy.IsRead(ts.Getenv("NS"), args[0]), nil
				}))
			},
			"exits": func(ts *testscript.TestScript, _ bool, args []string) {
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				got, err := 0, ts.Exec(args[1], args[2:]...)
				if exit, ok := errors.AsType[*exec.ExitError](err); ok {
					got = exit.ExitCode()
				} else {
					ts.Check(err)
				}
				if got != want {
					ts.Fatalf("exit code %d instead of %d", got, want)
				}
			},
		},
	})
}

// writeKubeconfig writes a kubeconfig for a namespace. It adds the context powerless, of the user with the token, and an anonymous one.
func writeKubeconfig(from, to, namespace, token string) error {
	config, err := clientcmd.LoadFromFile(from)
	if err != nil {
		return err
	}
	if err := api.FlattenConfig(config); err != nil {
		return err
	}
	config.Contexts[config.CurrentContext].Namespace = namespace
	server := config.Contexts[config.CurrentContext].Cluster
	for name, user := range map[string]*api.AuthInfo{"powerless": {Token: token}, "anonymous": {}} {
		config.AuthInfos[name] = user
		config.Contexts[name] = &api.Context{Cluster: server, AuthInfo: name, Namespace: namespace}
	}
	return clientcmd.WriteToFile(*config, to)
}

// powers waits until the API server grants the verb to the default service account.
func powers(ctx context.Context, client kubernetes.Interface, namespace, verb string) error {
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:" + namespace + ":default",
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: namespace, Verb: verb, Group: "stoker.io", Resource: "gatewaysyncs", Name: "plant",
				},
			},
		}, metav1.CreateOptions{})
		return err == nil && review.Status.Allowed, err
	})
}

func asked(ctx context.Context, cluster *kubetest.Cluster, namespace, name string) error {
	client, err := dynamic.NewForConfig(cluster.RESTConfig())
	if err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		gs, err := kube.GatewaySyncs(client, namespace).Get(ctx, name)
		if err != nil {
			return false, err
		}
		t := gs.Status.Target
		return t != nil && gs.Annotations["stoker.io/requested-at"] != t.RequestedAt, nil
	})
}

// lead writes the status of a GatewaySync from a text in YAML, and renews the lock of its lead. TestCommands says what the text may contain.
func lead(ctx context.Context, cluster *kubetest.Cluster, namespace, name, text string) error {
	client, err := dynamic.NewForConfig(cluster.RESTConfig())
	if err != nil {
		return err
	}
	syncs := kube.GatewaySyncs(client, namespace)
	gs, err := syncs.Get(ctx, name)
	if err != nil {
		return err
	}
	text = os.Expand(text, func(name string) string {
		switch name {
		case "NOW":
			return strconv.Quote(gs.Annotations["stoker.io/requested-at"])
		case "GENERATION":
			return strconv.FormatInt(gs.Generation, 10)
		case "OVER":
			return gs.Annotations["stoker.io/requested-over"]
		}
		return "$" + name
	})
	var status map[string]any
	if err := yaml.Unmarshal([]byte(text), &status); err != nil {
		return err
	}
	status["confirmedAt"] = time.Now().UTC().Format(time.RFC3339)
	status["approval"] = nil // a merge patch keeps what it does not name
	if err := setLock(ctx, kube.SyncTargets(client, namespace), name, "line-1-0_1"); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	if gs, err = syncs.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "stoker-lead"}, "status"); err != nil {
		return err
	}
	given := gs.Status.Outcome
	statustest.Complete(gs)
	if status["outcome"] != nil {
		gs.Status.Outcome = given
	}
	if patch, err = json.Marshal(map[string]any{"status": gs.Status}); err != nil {
		return err
	}
	_, err = syncs.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "stoker-lead"}, "status")
	return err
}

// setLock renews the lock of a lead, and creates the SyncTarget if there is none. An empty holder releases the lock.
func setLock(ctx context.Context, targets *kube.Objects[v1alpha1.SyncTarget], name, holder string) error {
	t := &v1alpha1.SyncTarget{Spec: v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat,
		Lead: v1alpha1.LeadRecord{Holder: holder, DurationSeconds: 60, Renewed: &metav1.MicroTime{Time: time.Now()}}}}
	t.Name = name
	_, err := targets.Create(ctx, t, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"lead": map[string]any{"holder": holder, "renewed": time.Now().UTC().Format(metav1.RFC3339Micro)}}})
	if err != nil {
		return err
	}
	_, err = targets.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func TestMissingKubeconfig(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "nothing"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	var out, talk writer
	code := run(t.Context(), []string{"stoker", "get", "--kubeconfig", filepath.Join(t.TempDir(), "nothing")}, &out, &talk)
	require.Equal(t, exit.Failed, code)
	require.Contains(t, string(talk), "--kubeconfig")
	require.Empty(t, out)
}

type writer []byte

func (w *writer) Write(p []byte) (int, error) { *w = append(*w, p...); return len(p), nil }
