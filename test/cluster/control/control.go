// Package control runs the control plane of a test cluster: etcd, the Kubernetes API server, and optionally the
// controllers and the scheduler. It needs no root and, unless Options.Address is set, only the network 127.0.0.1. Any
// number of control planes can run side by side.
package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/test/cluster/pki"
	"stoker.io/stoker/test/cluster/process"
)

// The names of a control plane's programs.
const (
	Etcd        = "etcd"
	APIServer   = "kube-apiserver"
	Controllers = "kube-controller-manager"
	Scheduler   = "kube-scheduler"
)

// Service addresses of every cluster. They are valid only inside the cluster.
const (
	ServiceCIDR = "10.96.0.0/16"
	ServiceAPI  = "10.96.0.1"
	ServiceDNS  = "10.96.0.10"
)

// Options configure a control plane.
type Options struct {
	Bin string // directory of the commands
	Dir string // state, certificates and logs; created if missing, and not removed by Close
	// Address is the API server's address; "" means 127.0.0.1. With another address the cluster has nodes, which find
	// the API server through the Service "kubernetes".
	Address string
	// Programs is the group of the programs; nil means a new one. Close ends all its members. A failed Start leaves
	// those of a given group to its owner.
	Programs *process.Group
	// APIServer are additional flags of the API server.
	APIServer []string
}

// Plane is a running control plane.
type Plane struct {
	Programs *process.Group

	opts         Options
	ports        process.Ports
	ca           *pki.Authority
	frontProxyCA *pki.Authority

	server, etcd, kubeconfig string
	client                   *http.Client
	port                     struct{ api, etcd, peer, controllers, scheduler int }
}

// startTimeout is the timeout for the start of one program on a busy machine. On an idle machine the start takes seconds.
const startTimeout = 2 * time.Minute

// Start starts etcd and the API server, and waits until the API server is ready.
func Start(ctx context.Context, o Options) (_ *Plane, err error) {
	if o.Address == "" {
		o.Address = "127.0.0.1"
	}
	p := &Plane{opts: o}
	for _, dir := range []string{p.pki(), p.logs()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	if p.Programs = o.Programs; p.Programs == nil {
		p.Programs = process.NewGroup(p.logs())
	}
	defer func() {
		if err != nil && o.Programs == nil {
			err = errors.Join(err, p.Close())
		}
	}()
	for _, port := range []*int{&p.port.api, &p.port.etcd, &p.port.peer, &p.port.controllers, &p.port.scheduler} {
		if *port, err = p.ports.Reserve(); err != nil {
			return nil, err
		}
	}
	p.etcd = localURL(p.port.etcd)
	p.server = "https://" + net.JoinHostPort(o.Address, strconv.Itoa(p.port.api))
	p.kubeconfig = filepath.Join(o.Dir, "kubeconfig")
	if err := p.writeCertificates(); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	if err := p.startEtcd(ctx); err != nil {
		return nil, err
	}
	return p, p.startAPIServer(ctx)
}

func localURL(port int) string { return "http://127.0.0.1:" + strconv.Itoa(port) }

func (p *Plane) pki() string             { return filepath.Join(p.opts.Dir, "pki") }
func (p *Plane) logs() string            { return filepath.Join(p.opts.Dir, "logs") }
func (p *Plane) file(name string) string { return filepath.Join(p.pki(), name) }
func (p *Plane) hasNodes() bool          { return p.opts.Address != "127.0.0.1" }

// Kubeconfig returns the path of a kubeconfig with all permissions.
func (p *Plane) Kubeconfig() string { return p.kubeconfig }

// Server returns the URL of the API server.
func (p *Plane) Server() string { return p.server }

// PKI returns the directory of the keys and certificates.
func (p *Plane) PKI() string { return p.pki() }

func (p *Plane) startEtcd(ctx context.Context) error {
	peer := localURL(p.port.peer)
	err := p.Programs.Start(process.Program{
		Name: Etcd, Path: filepath.Join(p.opts.Bin, Etcd),
		Args: []string{
			"--name=default", "--data-dir=" + filepath.Join(p.opts.Dir, "etcd"), "--log-level=warn",
			"--listen-client-urls=" + p.etcd, "--advertise-client-urls=" + p.etcd,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
			"--socket-reuse-port",
			"--unsafe-no-fsync", // the state need not survive a crash of the machine
		},
	})
	if err != nil {
		return err
	}
	return p.etcdReady(ctx)
}

func (p *Plane) etcdReady(ctx context.Context) error {
	return p.wait(ctx, "etcd", func(ctx context.Context) error {
		return get(ctx, http.DefaultClient, p.etcd+"/health", "")
	}, Etcd)
}

func (p *Plane) startAPIServer(ctx context.Context) error {
	reconciler := "none" // without nodes nothing uses the Service "kubernetes", and 127.0.0.1 is not a valid endpoint
	if p.hasNodes() {
		reconciler = "lease"
	}
	args := []string{
		"--etcd-servers=" + p.etcd, "--bind-address=" + p.opts.Address, "--secure-port=" + strconv.Itoa(p.port.api),
		"--permit-port-sharing", "--endpoint-reconciler-type=" + reconciler,
		"--tls-cert-file=" + p.file("apiserver.crt"), "--tls-private-key-file=" + p.file("apiserver.key"),
		"--client-ca-file=" + p.file("ca.crt"), "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction", "--anonymous-auth=false",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + p.file("sa.crt"), "--service-account-signing-key-file=" + p.file("sa.key"),
		"--service-cluster-ip-range=" + ServiceCIDR, "--allow-privileged=true",
		"--kubelet-client-certificate=" + p.file("kubelet-client.crt"), "--kubelet-client-key=" + p.file("kubelet-client.key"),
		"--kubelet-certificate-authority=" + p.file("ca.crt"), "--kubelet-preferred-address-types=InternalIP,Hostname",
		"--requestheader-client-ca-file=" + p.file("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + p.file("front-proxy-client.crt"), "--proxy-client-key-file=" + p.file("front-proxy-client.key"),
		"--event-ttl=1h", "--profiling=false", "--v=1", "--shutdown-watch-termination-grace-period=1s",
	}
	if !p.hasNodes() {
		args = append(args, "--advertise-address=192.0.2.1") // must not be a loopback address; nothing uses it
	}
	err := p.Programs.Start(process.Program{
		Name: APIServer, Path: filepath.Join(p.opts.Bin, APIServer), Args: append(args, p.opts.APIServer...),
		StopTimeout: 30 * time.Second,
	})
	if err != nil {
		return err
	}
	return p.APIReady(ctx)
}

// APIReady waits until the API server is ready.
func (p *Plane) APIReady(ctx context.Context) error {
	return p.wait(ctx, APIServer, func(ctx context.Context) error {
		return get(ctx, p.client, p.server+"/readyz", "ok")
	}, APIServer, Etcd)
}

// StartControllers starts the controllers and waits for the default service account as a sign of life. Install CRDs
// before: the garbage collector notices later ones only after up to 40 seconds.
func (p *Plane) StartControllers(ctx context.Context) error {
	err := p.Programs.Start(process.Program{
		Name: Controllers, Path: filepath.Join(p.opts.Bin, Controllers),
		Args: append(p.clientFlags("controllers", p.port.controllers),
			"--use-service-account-credentials=true", "--service-account-private-key-file="+p.file("sa.key"),
			"--root-ca-file="+p.file("ca.crt"), "--client-ca-file="+p.file("ca.crt"),
			"--cluster-signing-cert-file="+p.file("ca.crt"), "--cluster-signing-key-file="+p.file("ca.key"),
			"--requestheader-client-ca-file="+p.file("front-proxy-ca.crt"), "--controllers=*"),
	})
	if err != nil {
		return err
	}
	return p.ControllersReady(ctx)
}

// ControllersReady waits until the default service account exists.
func (p *Plane) ControllersReady(ctx context.Context) error {
	return p.wait(ctx, Controllers, func(ctx context.Context) error {
		return get(ctx, p.client, p.server+"/api/v1/namespaces/default/serviceaccounts/default", "")
	}, Controllers, APIServer)
}

// StartScheduler starts the scheduler.
func (p *Plane) StartScheduler() error {
	return p.Programs.Start(process.Program{
		Name: Scheduler, Path: filepath.Join(p.opts.Bin, Scheduler), Args: p.clientFlags("scheduler", p.port.scheduler),
	})
}

func (p *Plane) clientFlags(user string, port int) []string {
	kubeconfig := p.file(user + ".kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port), "--permit-port-sharing",
		"--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000", "--v=1",
	}
}

// Restart restarts a program that has ended, and waits until it is ready.
func (p *Plane) Restart(ctx context.Context, name string) error {
	if err := p.Programs.Restart(name); err != nil {
		return err
	}
	switch name {
	case Etcd:
		return p.etcdReady(ctx)
	case APIServer:
		return p.APIReady(ctx)
	case Controllers:
		return p.ControllersReady(ctx)
	}
	return nil
}

// Close kills all programs, because the state is no longer needed.
func (p *Plane) Close() error {
	if p.client != nil {
		p.client.CloseIdleConnections()
	}
	return errors.Join(p.Programs.Close(true), p.ports.Close())
}

func (p *Plane) wait(ctx context.Context, what string, ready func(context.Context) error, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return p.Programs.Wait(ctx, what, ready, names...)
}

// newClient returns a client of the API server with all permissions.
func newClient(roots *pki.Authority, user pki.Pair) (*http.Client, error) {
	cert, err := tls.X509KeyPair(user.Cert, user.Key)
	if err != nil {
		return nil, err
	}
	return &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots.Pool(), Certificates: []tls.Certificate{cert}}},
	}, nil
}

// get requests a page, which must exist and, if want is set, must equal it.
func get(ctx context.Context, client *http.Client, url, want string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(string(body)); res.StatusCode != http.StatusOK || want != "" && got != want {
		return fmt.Errorf("%s: %s: %.200s", url, res.Status, got)
	}
	return nil
}

// writeCertificates writes the certificates of the servers and their clients.
func (p *Plane) writeCertificates() (err error) {
	if p.ca, err = pki.NewAuthority("kubernetes-ca"); err != nil {
		return err
	}
	if p.frontProxyCA, err = pki.NewAuthority("front-proxy-ca"); err != nil {
		return err
	}
	pair := func(name string, p2 pki.Pair, err error) error {
		if err != nil {
			return err
		}
		return p2.Write(p.pki(), name)
	}
	client := func(a *pki.Authority, name, user string, groups ...string) error {
		cert, err := a.Client(pki.Subject{Name: user, Groups: groups})
		return pair(name, cert, err)
	}
	caPair, err := p.ca.Pair()
	frontPair, frontErr := p.frontProxyCA.Pair()
	keys, keysErr := pki.ServiceAccountKeys()
	serving, servingErr := p.ca.Server(pki.Subject{Name: "kube-apiserver"},
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"127.0.0.1", p.opts.Address, ServiceAPI)
	for _, err := range []error{
		pair("ca", caPair, err),
		pair("front-proxy-ca", frontPair, frontErr),
		pair("sa", keys, keysErr),
		pair("apiserver", serving, servingErr),
		client(p.ca, "kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
		client(p.frontProxyCA, "front-proxy-client", "front-proxy-client"),
	} {
		if err != nil {
			return err
		}
	}
	for name, user := range map[string]string{"controllers": "system:kube-controller-manager", "scheduler": "system:kube-scheduler"} {
		if _, err := p.WriteKubeconfig(name, pki.Subject{Name: user}); err != nil {
			return err
		}
	}
	admin, err := p.ca.Client(pki.Subject{Name: "admin", Groups: []string{"system:masters"}})
	if err != nil {
		return err
	}
	if p.client, err = newClient(p.ca, admin); err != nil {
		return err
	}
	return pki.WriteKubeconfig(p.kubeconfig, p.server, caPair.Cert, admin)
}

// WriteKubeconfig writes a kubeconfig for a user of the API server, <name>.kubeconfig beside the certificates. It returns
// the path.
func (p *Plane) WriteKubeconfig(name string, user pki.Subject) (string, error) {
	cert, err := p.ca.Client(user)
	if err != nil {
		return "", err
	}
	authority, err := p.ca.Pair()
	if err != nil {
		return "", err
	}
	path := filepath.Join(p.pki(), name+".kubeconfig")
	return path, pki.WriteKubeconfig(path, p.server, authority.Cert, cert)
}

// WriteServerCertificate writes a certificate and key for a server, <name>.crt and <name>.key beside the other certificates.
func (p *Plane) WriteServerCertificate(name string, subject pki.Subject, names ...string) error {
	cert, err := p.ca.Server(subject, names...)
	if err != nil {
		return err
	}
	return cert.Write(p.pki(), name)
}
