package control

import (
	"path/filepath"

	"stoker.io/stoker/test/cluster/pki"
)

// certify writes the certificates of the servers and their clients.
func (p *Plane) certify() (err error) {
	if p.ca, err = pki.NewAuthority("kubernetes-ca"); err != nil {
		return err
	}
	if p.front, err = pki.NewAuthority("front-proxy-ca"); err != nil {
		return err
	}
	pair := func(name string, p2 pki.Pair, err error) error {
		if err != nil {
			return err
		}
		return p2.Write(p.pki(), name)
	}
	client := func(a *pki.Authority, name, user string, groups ...string) error {
		made, err := a.Client(pki.Subject{Name: user, Groups: groups})
		return pair(name, made, err)
	}
	caPair, err := p.ca.Pair()
	frontPair, frontErr := p.front.Pair()
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
		client(p.front, "front-proxy-client", "front-proxy-client"),
	} {
		if err != nil {
			return err
		}
	}
	for name, user := range map[string]string{"controllers": "system:kube-controller-manager", "scheduler": "system:kube-scheduler"} {
		if _, err := p.Login(name, pki.Subject{Name: user}); err != nil {
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

// Login writes a kubeconfig for a user of the API server, <name>.kubeconfig beside the certificates, and returns its
// path.
func (p *Plane) Login(name string, user pki.Subject) (string, error) {
	made, err := p.ca.Client(user)
	if err != nil {
		return "", err
	}
	authority, err := p.ca.Pair()
	if err != nil {
		return "", err
	}
	path := filepath.Join(p.pki(), name+".kubeconfig")
	return path, pki.WriteKubeconfig(path, p.server, authority.Cert, made)
}

// Serving writes a certificate and key for a server, <name>.crt and <name>.key beside the other certificates.
func (p *Plane) Serving(name string, subject pki.Subject, names ...string) error {
	made, err := p.ca.Server(subject, names...)
	if err != nil {
		return err
	}
	return made.Write(p.pki(), name)
}
