package control

import (
	"path/filepath"

	"stoker.io/stoker/test/cluster/pki"
)

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
