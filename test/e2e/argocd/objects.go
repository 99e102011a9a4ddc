//go:build linux

package argocd

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Names of the objects by which users configure Argo CD.
const (
	ConfigMap              = "argocd-cm"
	NotificationsConfigMap = "argocd-notifications-cm"
	NotificationsSecret    = "argocd-notifications-secret"
)

var (
	// Resources is the resource of Applications.
	Resources = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "applications"}
	projects  = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "appprojects"}
)

// objects creates the objects of an installation except for the workloads.
func (a *ArgoCD) objects(ctx context.Context, config *rest.Config) error {
	created := func(_ any, err error) error {
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	errs := []error{created(a.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}, metav1.CreateOptions{}))}
	for _, name := range []string{ConfigMap, "argocd-rbac-cm", NotificationsConfigMap} {
		errs = append(errs, created(a.client.CoreV1().ConfigMaps(Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta(name, nil)}, metav1.CreateOptions{})))
	}
	errs = append(errs, created(a.client.CoreV1().Secrets(Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: meta("argocd-secret", nil), StringData: map[string]string{"server.secretkey": cryptorand.Text()},
	}, metav1.CreateOptions{})))
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	errs = append(errs, created(Projects(dynamicClient).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "argoproj.io/v1alpha1", "kind": "AppProject",
		"metadata": map[string]any{"name": "default"},
		"spec": map[string]any{
			"sourceRepos":              []any{"*"},
			"destinations":             []any{map[string]any{"server": "*", "namespace": "*"}},
			"clusterResourceWhitelist": []any{map[string]any{"group": "*", "kind": "*"}},
		},
	}}, metav1.CreateOptions{})))
	return errors.Join(errs...)
}

// meta returns the metadata by which Argo CD recognizes its own configuration.
func meta(name string, labels map[string]string) metav1.ObjectMeta {
	all := map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "argocd"}
	for k, v := range labels {
		all[k] = v
	}
	return metav1.ObjectMeta{Name: name, Labels: all}
}

// Repository stores the credentials of the repositories whose URL starts with url.
func (a *ArgoCD) Repository(ctx context.Context, name, url, username, password string) error {
	_, err := a.client.CoreV1().Secrets(Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: meta(name, map[string]string{"argocd.argoproj.io/secret-type": "repo-creds"}),
		StringData: map[string]string{"type": "git", "url": url, "username": username, "password": password},
	}, metav1.CreateOptions{})
	return err
}

// Secret creates one of Argo CD's own Secrets.
func (a *ArgoCD) Secret(ctx context.Context, name string, values map[string]string) error {
	_, err := a.client.CoreV1().Secrets(Namespace).Create(ctx, &corev1.Secret{ObjectMeta: meta(name, nil), StringData: values}, metav1.CreateOptions{})
	return err
}

// Argo CD accepts neither an open socket nor port 0. So its ports are from a range that is used neither for outgoing
// connections nor for NodePorts.
const (
	firstPort, lastPort = 10000, 29999
	outgoing            = "/proc/sys/net/ipv4/ip_local_port_range"
)

// freePort returns a free port of that range that is not in but.
func freePort(but []int) (int, error) {
	text, err := os.ReadFile(outgoing)
	if err != nil {
		return 0, err
	}
	var first, last int
	if _, err := fmt.Sscan(string(text), &first, &last); err != nil {
		return 0, fmt.Errorf("%s: %w", outgoing, err)
	}
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if slices.Contains(but, port) || port >= first && port <= last {
			continue
		}
		// All addresses, because some metrics servers cannot be bound to a single one.
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, errors.New("no free port between 10000 and 29999 that " + outgoing + " leaves")
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
