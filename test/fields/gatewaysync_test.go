package fields

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// plant returns a valid GatewaySync, to which the groups add alternatives such as credentials.
func plant() *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGatewaySync}}
	gs.ObjectMeta = metav1.ObjectMeta{Namespace: "site", Name: "plant", UID: "uid-1", Generation: 1}
	gs.Spec = v1alpha1.GatewaySyncSpec{
		Git: v1alpha1.GitSpec{Repo: "https://git.example.com/acme/plant.git", Ref: "main"},
		Sync: v1alpha1.SyncSpec{Profiles: map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{
			{Source: "gw/projects", Destination: "projects"}, {Source: "gw/config", Destination: "config"}}}}},
		Bidirectional: &v1alpha1.BidirectionalSpec{},
		Snapshots:     &v1alpha1.SnapshotsSpec{},
	}
	return gs
}

func TestGatewaySync(t *testing.T) {
	s := newSite(t)
	table := slices.Concat(gitGroups(t), gatewayGroups(t), storageGroups(t), syncGroups(s), proposalGroups(t, s), reviewGroups(t, s), signatureGroups(t, s), timeGroups(s), simulatedGroups(s),
		injectorGroups(), alertGroups(t), leadGroups(t), followGroups(t, s), []group[v1alpha1.GatewaySync]{webhookGroup("gatewaysync", func(gs *v1alpha1.GatewaySync) *v1alpha1.WebhookSpec { return &gs.Spec.Webhook })})
	checkTable(t, plant, func(gs *v1alpha1.GatewaySync) any { return &gs.Spec }, table)
}
