package pki

import (
	"encoding/json"
	"os"
)

// WriteKubeconfig writes a kubeconfig for one cluster and one user. It is JSON, which is valid YAML.
func WriteKubeconfig(path, server string, ca []byte, user Pair) error {
	type named map[string]any
	raw, err := json.MarshalIndent(named{
		"apiVersion": "v1",
		"kind":       "Config",
		"clusters":   []named{{"name": "local", "cluster": named{"server": server, "certificate-authority-data": ca}}},
		"users":      []named{{"name": "local", "user": named{"client-certificate-data": user.Cert, "client-key-data": user.Key}}},
		"contexts":   []named{{"name": "local", "context": named{"cluster": "local", "user": "local"}}},

		"current-context": "local",
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o600)
}
