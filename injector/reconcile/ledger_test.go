package reconcile

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/internal/lease"
	"stoker.io/stoker/test/clientset"
)

// held returns the Lease of the tests as a replica sees it.
func held(client kubernetes.Interface, holder string) lease.Lease {
	return lease.Lease{Client: client, Namespace: "stoker-system", Name: "injector", Holder: holder}
}

func TestLedgerTakeover(t *testing.T) {
	object := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "stoker-system", Name: "injector"}}
	object.Spec.HolderIdentity = new("a")
	client := clientset.New(object)
	now := noon
	replica := func(holder string) *ledger {
		l := &ledger{lease: held(client, holder), now: func() time.Time { return now }}
		l.load(t.Context(), slog.New(slog.DiscardHandler))
		return l
	}
	holds := func(holder string) {
		l, err := client.CoordinationV1().Leases("stoker-system").Get(t.Context(), "injector", metav1.GetOptions{})
		require.NoError(t, err)
		l.Spec.HolderIdentity = &holder
		_, err = client.CoordinationV1().Leases("stoker-system").Update(t.Context(), l, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	a := replica("a")
	e := eviction{Namespace: "plant", GatewaySync: "line", Pod: "site-0", UID: "old", Owner: "owner", By: "StatefulSet site", Newest: metav1.NewTime(noon.Local()), At: metav1.NewTime(noon.Local())}

	conflicts := 2 // the lock is renewed during the update
	client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts--; conflicts >= 0 {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "injector", errors.New("conflict"))
		}
		return false, nil, nil
	})
	require.NoError(t, a.put(t.Context(), "line", e))
	assert.Negative(t, conflicts)

	holds("b")
	b := replica("b")
	got, ok := b.of("line")
	assert.True(t, ok)
	assert.Equal(t, e, got)
	require.ErrorIs(t, a.put(t.Context(), "oven", e), lease.ErrDeposed, "a deposed replica must not evict pods")
	_, ok = a.of("oven")
	assert.False(t, ok)

	require.NoError(t, b.drop(t.Context(), "line"))
	_, ok = replica("c").of("line")
	assert.False(t, ok)

	require.NoError(t, b.put(t.Context(), "line", e))
	now = noon.Add(recordLifetime)
	_, ok = b.of("line")
	assert.False(t, ok, "the record of a deleted owner must be removed")
}

func TestLedgerSizeIsBounded(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "stoker-system", Name: "injector"}}
	lease.Spec.HolderIdentity = new("a")
	l := &ledger{lease: held(clientset.New(lease), "a"), now: func() time.Time { return noon }, evicted: map[types.UID]eviction{}}
	uid := types.UID("01234567-0123-0123-0123-012345678901")
	for i := range maxEvicted {
		l.evicted[types.UID(fmt.Sprintf("%s%03d", uid[3:], i))] = eviction{Namespace: "plant-of-the-north", GatewaySync: "line-of-the-north", Pod: "ignition-gateway-of-the-north-0", UID: uid, Owner: uid,
			By: "StatefulSet ignition-gateway-of-the-north", Newest: metav1.NewTime(noon), At: metav1.NewTime(noon)}
	}
	text, err := json.Marshal(l.evicted)
	require.NoError(t, err)
	assert.Less(t, len(text), 256<<10*4/5)
	require.ErrorIs(t, l.put(t.Context(), "one more", eviction{}), errFull)
	l.now = func() time.Time { return noon.Add(recordLifetime) }
	require.NoError(t, l.put(t.Context(), "one more", eviction{At: metav1.NewTime(noon.Add(recordLifetime))}))
	assert.Len(t, l.evicted, 1, "expired records must be dropped")
}

func TestLedgerDropsInvalidRecords(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "stoker-system", Name: "injector", Annotations: map[string]string{annotationEvicted: "{"}}}
	lease.Spec.HolderIdentity = new("a")
	l := &ledger{lease: held(clientset.New(lease), "a"), now: func() time.Time { return noon }}
	l.load(t.Context(), slog.New(slog.DiscardHandler))
	require.NoError(t, l.put(t.Context(), "line", eviction{At: metav1.NewTime(noon)}))
}
