package scenario

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/receiver/credential"
	"stoker.io/stoker/test/gitserver"
)

// A service denies a commit, and allows the next one.
func TestValidationWebhook(t *testing.T) {
	p := newPlant(t, withoutGateway)
	var allowed atomic.Bool
	check := credential.NewChecker()
	validator := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		proof, ok := credential.Read(r.Header, time.Now())
		assert.True(t, ok && proof.Signed() && check.Verify(proof, body, []secret.String{secret.New("S3CR3T-hmac")}, 1))
		var q struct{ UID string }
		assert.NoError(t, json.Unmarshal(body, &q))
		_ = json.NewEncoder(w).Encode(map[string]any{"uid": q.UID, "allowed": allowed.Load(), "message": "CHG-4711 is open"})
	}))
	t.Cleanup(validator.Close)
	p.secret("validator/hmac", "S3CR3T-hmac")
	p.secret("validator/ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: validator.Certificate().Raw})))
	p.spec.top = "  validation:\n    webhook:\n      url: " + validator.URL + "/plan\n" +
		"      secretRef: {name: validator, key: hmac}\n      caSecretRef: {name: validator, key: ca.crt}\n"
	first := p.repo.Commit("first", site()...) // the first delivery to a gateway is not reviewed
	p.saveSpec()
	p.start()
	p.synced(first)

	p.repo.Commit("bad", gitserver.Write(inGit+viewPath, view("bad")))
	held := p.reason("ValidationDenied")
	assert.Equal(t, "Held", held.Phase)
	assert.Equal(t, first, held.Commit)
	assert.Contains(t, held.Message, "CHG-4711 is open")
	assert.Equal(t, view("one"), p.read(viewPath))
	allowed.Store(true)
	p.synced(p.repo.Commit("good", gitserver.Write(inGit+viewPath, view("good"))))
	assert.NotContains(t, p.agent.Log.String(), "S3CR3T-hmac")
	p.stop()
}
