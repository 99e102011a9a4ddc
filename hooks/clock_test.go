package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// promoted returns the name of a Kargo promotion created at a time. The first ten digits of its ULID encode the milliseconds.
func promoted(at time.Time) string {
	name := []byte("test.0000000000zzzzzzzzzzzzzzzz.abcdef0")
	for i, ms := len("test.")+9, at.UnixMilli(); i >= len("test."); i, ms = i-1, ms>>5 {
		name[i] = "0123456789abcdefghjkmnpqrstvwxyz"[ms&31]
	}
	return string(name)
}

// The command must use the clock of the API server. By the late clock of this node, every promotion would be from the future.
func TestAnOlderPromotionIsSupersededByTheClockOfTheAPIServer(t *testing.T) {
	t.Parallel()
	const late = 10 * time.Minute // delay of this node's clock
	now := time.Now().Add(late)
	gs := &v1alpha1.GatewaySync{
		TypeMeta: metav1.TypeMeta{APIVersion: "stoker.io/v1alpha1", Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: "line", Namespace: "plant", UID: "1", Annotations: map[string]string{
			v1alpha1.AnnotationRequestedIDs: `{"kargo":"` + promoted(now.Add(-time.Second)) + `"}`,
		}},
		Spec: v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Ref: "main"}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Date", time.Now().Add(late).UTC().Format(http.TimeFormat))
		assert.NoError(t, json.NewEncoder(w).Encode(gs))
	}))
	t.Cleanup(server.Close)
	config := kubeconfigOf(t, server.URL)
	require.Eventually(t, func() bool { // an answer that takes seconds is no source for the time
		var said strings.Builder
		code := run(t.Context(), []string{"stoker", "--kubeconfig", config, "set-ref", "line", "v1", "--by", "kargo", "--id", promoted(now.Add(-time.Minute))}, &said, &said)
		return code == exitSuperseded && strings.Contains(said.String(), "is older than")
	}, time.Minute, 10*time.Millisecond)
}
