package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"stoker.io/stoker/test/cluster/memory"
	"stoker.io/stoker/test/module"
)

// stepTimeout bounds one operation of a helper, such as applying one path.
const stepTimeout = time.Minute

// RESTConfig returns a copy of a configuration with all permissions and without client-side limit.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.rest) }

// Kubeconfig returns the path of a kubeconfig with all permissions.
func (c *Cluster) Kubeconfig() string { return c.kubeconfig }

// Client returns a client with all permissions.
func (c *Cluster) Client(t testing.TB) kubernetes.Interface {
	t.Helper()
	client, err := c.clientset()
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (c *Cluster) clientset() (*kubernetes.Clientset, error) {
	return kubernetes.NewForConfig(c.RESTConfig())
}

// Namespace creates a namespace for the test, waits until pods can be created in it, and returns its name. It is deleted at the
// end of the test, without waiting.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	return c.namespace(t, metav1.ObjectMeta{GenerateName: namespaceName(t.Name()) + "-"})
}

// NamespaceNamed is Namespace with a fixed name. On a shared cluster only one test may use a name.
func (c *Cluster) NamespaceNamed(t testing.TB, name string) string {
	t.Helper()
	return c.namespace(t, metav1.ObjectMeta{Name: name})
}

func (c *Cluster) namespace(t testing.TB, meta metav1.ObjectMeta) string {
	t.Helper()
	client := c.Client(t)
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	made, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: meta}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("namespace: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		// If the test left the API server stopped, the namespace goes away with the cluster.
		_ = client.CoreV1().Namespaces().Delete(ctx, made.Name, metav1.DeleteOptions{})
	})
	if err := c.defaultAccount(ctx, client, made.Name); err != nil {
		t.Fatalf("default service account of %s: %v", made.Name, err)
	}
	return made.Name
}

// defaultAccount waits for the service account that every pod needs, or creates it if no controller does.
func (c *Cluster) defaultAccount(ctx context.Context, client kubernetes.Interface, namespace string) error {
	accounts := client.CoreV1().ServiceAccounts(namespace)
	c.mu.Lock()
	// A cluster that this process did not start, for which plane is nil, runs controllers.
	byController := !c.memory && (c.plane == nil || c.controllers)
	c.mu.Unlock()
	if !byController {
		_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // the controllers were started meanwhile
		}
		return err
	}
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := accounts.Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// namespaceName returns a name of at most 40 characters derived from the test's name.
func namespaceName(test string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimPrefix(test, "Test")) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() == 40 {
			break
		}
	}
	if name := strings.Trim(b.String(), "-"); name != "" {
		return name
	}
	return "test"
}

// As returns a client configuration that authenticates as a service account. If pod is set, the token is bound to that pod like
// a token mounted by a kubelet, so that admission sees the pod's name. An API server in memory knows no rights: As returns RESTConfig.
func (c *Cluster) As(t testing.TB, namespace, account, pod string) *rest.Config {
	t.Helper()
	if c.memory {
		return c.RESTConfig()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	client := c.Client(t)
	request := &authenticationv1.TokenRequest{}
	if pod != "" {
		found, err := client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("token of %s/%s: %v", namespace, account, err)
		}
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod, UID: found.UID}
	}
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("token of %s/%s: %v", namespace, account, err)
	}
	config := rest.AnonymousClientConfig(c.rest)
	config.QPS = -1
	config.BearerToken = token.Status.Token
	return config
}

// KubeconfigFor writes a kubeconfig of a client configuration, which lasts as long as the test, and returns its path.
func KubeconfigFor(t testing.TB, config *rest.Config, namespace string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := WriteKubeconfig(config, file, namespace); err != nil {
		t.Fatal(err)
	}
	return file
}

// WriteKubeconfig writes a kubeconfig of a client configuration.
func WriteKubeconfig(config *rest.Config, file, namespace string) error {
	kc := clientcmdapi.NewConfig()
	kc.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData, CertificateAuthority: config.CAFile}
	kc.AuthInfos["c"] = &clientcmdapi.AuthInfo{
		Token: config.BearerToken, ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, ClientCertificate: config.CertFile, ClientKey: config.KeyFile,
	}
	kc.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c", Namespace: namespace}
	kc.CurrentContext = "c"
	return clientcmd.WriteToFile(*kc, file)
}

// WaitAllowed waits until the API server allows an action to a service account: its authorizer sees a new binding with a
// short delay.
func (c *Cluster) WaitAllowed(t testing.TB, namespace, account string, what authorizationv1.ResourceAttributes) {
	t.Helper()
	c.waitForVerdict(t, namespace, account, what, true)
}

// WaitDenied waits until the API server denies an action to a service account: its authorizer sees a deleted binding with a
// short delay, too.
func (c *Cluster) WaitDenied(t testing.TB, namespace, account string, what authorizationv1.ResourceAttributes) {
	t.Helper()
	c.waitForVerdict(t, namespace, account, what, false)
}

func (c *Cluster) waitForVerdict(t testing.TB, namespace, account string, what authorizationv1.ResourceAttributes, allowed bool) {
	t.Helper()
	if c.memory {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	reviews := c.Client(t).AuthorizationV1().SubjectAccessReviews()
	err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		review, err := reviews.Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:" + namespace + ":" + account, ResourceAttributes: &what},
		}, metav1.CreateOptions{})
		return err == nil && review.Status.Allowed == allowed, err
	})
	if err != nil {
		t.Fatalf("waiting until allowed is %t for %s/%s to %s %s %s in %q: %v", allowed, namespace, account, what.Verb, what.Resource, what.Name, what.Namespace, err)
	}
}

// Apply applies the YAML files at the paths, each a file or a directory, and waits until CRDs among them are served. It skips
// files with another extension than .yaml, and kustomization.yaml.
func (c *Cluster) Apply(t testing.TB, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := c.apply(context.Background(), path); err != nil {
			t.Fatalf("apply: %v", err)
		}
	}
}

// Select returns the documents of a YAML file whose kind and name match one of the patterns, such as ClusterRole/stoker-* (path.Match).
func Select(file string, patterns ...string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var selected []string
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		if slices.ContainsFunc(patterns, func(pattern string) bool {
			match, _ := path.Match(pattern, object.Kind+"/"+object.Name) // tests have valid patterns
			return match
		}) {
			selected = append(selected, document)
		}
	}
	if len(selected) == 0 {
		return "", fmt.Errorf("%s has no object %s", file, strings.Join(patterns, " or "))
	}
	return strings.Join(selected, "\n---\n"), nil
}

// Shipped returns the objects of a folder of kustomize/ that Select selects. The folder is an absolute path, or relative to the
// package of the test.
func Shipped(t testing.TB, folder string, patterns ...string) string {
	t.Helper()
	text, err := Select(filepath.Join(folder, "objects.yaml"), patterns...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// ApplyYAML applies the documents of a text. namespace is the default namespace.
func (c *Cluster) ApplyYAML(t testing.TB, namespace, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	if err := c.applyDocuments(ctx, namespace, strings.NewReader(text)); err != nil {
		t.Fatalf("apply: %v", err)
	}
}

func (c *Cluster) apply(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" || d.Name() == "kustomization.yaml" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := c.applyDocuments(ctx, "", bytes.NewReader(content)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	})
}

func (c *Cluster) applyDocuments(ctx context.Context, namespace string, documents io.Reader) error {
	client, err := dynamic.NewForConfig(c.RESTConfig())
	if err != nil {
		return err
	}
	for decoder := yaml.NewYAMLOrJSONDecoder(documents, 4096); ; {
		var object unstructured.Unstructured
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(object.Object) == 0 {
			continue
		}
		if err := c.applyObject(ctx, client, namespace, &object); err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

func (c *Cluster) applyObject(ctx context.Context, client dynamic.Interface, namespace string, object *unstructured.Unstructured) error {
	resource, namespaced, err := c.resource(object.GroupVersionKind())
	if err != nil {
		return err
	}
	objects := dynamic.ResourceInterface(client.Resource(resource))
	if namespaced {
		if object.GetNamespace() != "" {
			namespace = object.GetNamespace()
		}
		objects = client.Resource(resource).Namespace(namespace)
	}
	raw, err := object.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = objects.Patch(ctx, object.GetName(), types.ApplyPatchType, raw, metav1.PatchOptions{FieldManager: "kubetest", Force: new(true)})
	if err != nil || object.GetKind() != "CustomResourceDefinition" {
		return err
	}
	return c.waitServed(ctx, objects, object.GetName())
}

// resource returns the resource of a kind.
func (c *Cluster) resource(kind schema.GroupVersionKind) (schema.GroupVersionResource, bool, error) {
	if c.memory {
		resource, _ := meta.UnsafeGuessKindToResource(kind)
		return resource, kind.Kind != "Namespace" && !strings.HasPrefix(kind.Kind, "Cluster"), nil
	}
	client, err := discovery.NewDiscoveryClientForConfig(c.RESTConfig())
	if err != nil {
		return schema.GroupVersionResource{}, false, err
	}
	list, err := client.ServerResourcesForGroupVersion(kind.GroupVersion().String())
	if err != nil {
		return schema.GroupVersionResource{}, false, err
	}
	for _, r := range list.APIResources {
		if r.Kind == kind.Kind && !strings.Contains(r.Name, "/") {
			return kind.GroupVersion().WithResource(r.Name), r.Namespaced, nil
		}
	}
	return schema.GroupVersionResource{}, false, fmt.Errorf("%s has no kind %s", kind.GroupVersion(), kind.Kind)
}

// waitServed waits until a CRD is established and discoverable.
func (c *Cluster) waitServed(ctx context.Context, definitions dynamic.ResourceInterface, name string) error {
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		got, err := definitions.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		var definition struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Served bool
				}
			}
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
		if raw, err := got.MarshalJSON(); err != nil {
			return false, err
		} else if err := json.Unmarshal(raw, &definition); err != nil {
			return false, err
		}
		established := false
		for _, condition := range definition.Status.Conditions {
			established = established || condition.Type == "Established" && condition.Status == "True"
		}
		for _, version := range definition.Spec.Versions {
			if version.Served && established {
				_, _, err := c.resource(schema.GroupVersionKind{Group: definition.Spec.Group, Version: version.Name, Kind: definition.Spec.Names.Kind})
				established = err == nil
			}
		}
		return established, nil
	})
}

// Objects returns what Control returns, but in go test -short an API server in memory. It is for tests that only read and write objects: rights,
// validation, admission, controllers and programs to stop need Control.
func Objects(t testing.TB) *Cluster {
	t.Helper()
	if !testing.Short() {
		return Control(t)
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.endedByMain {
		t.Fatal(errShared)
	}
	if shared.memory == nil {
		root, err := module.Root()
		if err != nil {
			t.Fatal(err)
		}
		server, err := memory.Start(filepath.Join(root, "charts", "stoker", "files", "crds"))
		if err != nil {
			t.Fatal(err)
		}
		dir, err := os.MkdirTemp("", "kubetest-")
		kubeconfig := filepath.Join(dir, "kubeconfig")
		if err == nil {
			err = WriteKubeconfig(server.RESTConfig(), kubeconfig, "")
		}
		if err != nil {
			t.Fatal(errors.Join(err, server.Close()))
		}
		end := func() error { return errors.Join(server.Close(), os.RemoveAll(dir)) }
		shared.memory = &Cluster{kubeconfig: kubeconfig, rest: server.RESTConfig(), memory: true, shared: true, close: end}
	}
	return shared.memory
}
