package ignition_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
)

func TestRoleFromRedundancyXML(t *testing.T) {
	const head = `<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<!DOCTYPE properties SYSTEM "http://java.sun.com/dtd/properties.dtd">
<properties>
<comment>Redundancy Settings</comment>
`
	for name, c := range map[string]struct{ content, want string }{
		"backup":              {head + `<entry key="redundancy.noderole">Backup</entry></properties>`, ignition.RoleBackup},
		"master, with spaces": {head + "<entry key=\"redundancy.gan.host\">10.0.0.1</entry>\n<entry key=\"redundancy.noderole\"> MASTER\n</entry></properties>", ignition.RoleMaster},
		"independent":         {head + `<entry key="redundancy.noderole">Independent</entry></properties>`, ignition.RoleIndependent},
		"no role":             {head + `</properties>`, ignition.RoleIndependent},
		"empty file":          {"", ignition.RoleIndependent},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ignition.NodeRole([]byte(c.content))
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
	t.Run("invalid character", func(t *testing.T) {
		_, err := ignition.NodeRole([]byte(head + `<entry key="redundancy.noderole">Tertiary&#x1b;</entry></properties>`))
		require.Error(t, err)
	})
}

func TestInvalidRedundancyXML(t *testing.T) {
	for _, content := range []string{
		head64(), `<properties><entry key="redundancy.noderole">Backup`, `<properties><entry></properties>`,
		`<!DOCTYPE p [<!ENTITY a "Backup">]><properties><entry key="redundancy.noderole">&a;</entry></properties>`,
	} {
		t.Run(fmt.Sprintf("%.40q", content), func(t *testing.T) {
			_, err := ignition.NodeRole([]byte(content))
			assert.Error(t, err)
		})
	}
}

func head64() string {
	return "<properties>" + strings.Repeat(" ", ignition.MaxRedundancyFile) + "</properties>"
}

func TestRedundancyRoles(t *testing.T) {
	for role, paired := range map[string]bool{ignition.RoleIndependent: false, ignition.RoleMaster: true, ignition.RoleBackup: true} {
		t.Run(role, func(t *testing.T) {
			c := client(t, start(t, simulator.Options{Role: role}))
			red, err := c.Redundancy(t.Context())
			require.NoError(t, err)
			assert.Equal(t, role, red.Role)
			assert.Equal(t, paired, red.Paired())
			assert.Equal(t, role != ignition.RoleBackup, red.HasConfigAccess)
			p, err := c.Platform(t.Context())
			require.NoError(t, err)
			assert.Equal(t, ignition.Platform{Version: ignition.Version{Major: 8, Minor: 3, Patch: 8}, Role: role}, p)
		})
	}
}

func TestScanModule(t *testing.T) {
	for _, version := range []string{"8.1.44", "8.3.8"} {
		t.Run(version, func(t *testing.T) {
			g := start(t, simulator.Options{Version: version, ScanModule: true})
			_, err := g.Designers.Open("ann", "P")
			require.NoError(t, err)
			done, err := client(t, g).ScanByModule(t.Context(), true)
			require.NoError(t, err)
			assert.True(t, done.DesignersNotified)
			assert.Equal(t, 1, g.Designers.Notifications())
		})
	}
}

func TestGatewayWithoutScanModule(t *testing.T) {
	for _, version := range []string{"8.1.44", "8.3.8"} {
		t.Run(version, func(t *testing.T) {
			_, err := client(t, start(t, simulator.Options{Version: version})).ScanByModule(t.Context(), true)
			require.ErrorIs(t, err, ignition.ErrNoScanModule)
		})
	}
	g := start(t, simulator.Options{ScanModule: true})
	require.NoError(t, g.Faults.Add(simulator.Fault{Route: "GET /data/project-scan-endpoint/confirm-support", Status: 200, Body: `{"supported":false}`}))
	_, err := client(t, g).ScanByModule(t.Context(), true)
	require.ErrorIs(t, err, ignition.ErrNoScanModule)
}

func TestScanModuleFailure(t *testing.T) {
	g := start(t, simulator.Options{Version: "8.1.44", ScanModule: true})
	require.NoError(t, g.Faults.Add(simulator.Fault{Route: "POST /data/project-scan-endpoint/scan", Status: 200, Body: `{"gatewayProjectScanSuccess":false}`}))
	_, err := client(t, g).ScanByModule(t.Context(), true)
	requireReason(t, v1alpha1.ReasonScanFailed, err)
}
