package sync_test

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	gosync "sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/record"
	"stoker.io/stoker/agent/review"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/receiver/credential"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// validator is a validation webhook over https.
type validator struct {
	*httptest.Server
	mu     gosync.Mutex
	asked  []review.Request
	header []http.Header
	bodies [][]byte
	answer func(w http.ResponseWriter, r *http.Request, q review.Request)
}

func newValidator(t *testing.T) *validator {
	v := &validator{answer: answers(true, "")}
	v.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		var q review.Request
		assert.NoError(t, json.Unmarshal(body, &q))
		v.mu.Lock()
		v.asked, v.header, v.bodies = append(v.asked, q), append(v.header, r.Header.Clone()), append(v.bodies, body)
		answer := v.answer
		v.mu.Unlock()
		answer(w, r, q)
	}))
	t.Cleanup(v.Close)
	return v
}

func answers(allowed bool, message string) func(http.ResponseWriter, *http.Request, review.Request) {
	return func(w http.ResponseWriter, _ *http.Request, q review.Request) {
		_ = json.NewEncoder(w).Encode(review.Answer{UID: q.UID, Allowed: &allowed, Message: message})
	}
}

func says(text string) func(http.ResponseWriter, *http.Request, review.Request) {
	return func(w http.ResponseWriter, _ *http.Request, _ review.Request) { _, _ = io.WriteString(w, text) }
}

func (v *validator) webhook() *review.Webhook {
	return &review.Webhook{
		URL: v.URL + "/validate?token=S3CR3T", Client: httpclient.Client{Loopback: true, Timeout: 10 * time.Second},
		CA: func() ([]byte, error) {
			return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: v.Certificate().Raw}), nil
		},
	}
}

// reviewed returns a bench that has delivered a commit without asking, and has another one as its target.
func reviewed(t *testing.T) (*bench, *validator) {
	b, v := newBench(t, simulator.Options{}), newValidator(t)
	b.conn.Webhook = v.webhook()
	b.target.Facts.Namespace, b.target.Facts.CRName, b.target.Facts.GatewayName = "site", "plant", "area-4"
	b.target.Profile.Profile = "edge"
	b.push(append(firstCommit(), gitserver.Write("projects/line/old.txt", "old"))...)
	b.synced()
	require.Empty(t, v.asked, "no review of the first sync")
	b.push(gitserver.Write(view, `{"one": 2}`), gitserver.Write("projects/line/new.txt", "new"), gitserver.Delete("projects/line/old.txt"))
	return b, v
}

func TestValidationWebhook(t *testing.T) {
	t.Run("allowed", func(t *testing.T) {
		b, v := reviewed(t)
		dir, err := b.engine.Open()
		require.NoError(t, err)
		was := dir.Manifest().Header().Commit.String()
		b.synced()
		require.Len(t, v.asked, 1)
		q := v.asked[0]
		assert.Len(t, q.UID, 32)
		q.UID = ""
		assert.Equal(t, review.Request{
			Namespace: "site", GatewaySync: "plant", Gateway: "area-4", Profile: "edge", Ref: "main", Commit: b.target.Commit.String(), FromCommit: was,
			Files: []review.File{{Path: viewDir + "/resource.json", Action: "modified"}, {Path: view, Action: "modified"}, {Path: "projects/line/new.txt", Action: "added"}, {Path: "projects/line/old.txt", Action: "deleted"}},
		}, q)
		assert.NotContains(t, string(v.bodies[0]), `"one"`, "no content leaves the gateway")
		assert.Empty(t, v.header[0].Get("X-Hub-Signature-256"), "no signature without a key")
		b.synced()
		assert.Len(t, v.asked, 1)
	})
	for name, newVolume := range map[string]bool{"no review of what a new volume had before": true, "a review if a volume in use lost its files": false} {
		t.Run(name, func(t *testing.T) {
			b, v := reviewed(t)
			b.synced()
			require.Len(t, v.asked, 1)
			require.NoError(t, b.engine.Close())
			b.remove(".stoker")
			b.remove("projects/line")
			b.restart(t.TempDir())
			require.NoError(t, b.engine.SetRecord(record.Record{Ref: "main", Commit: b.target.Commit}))
			b.target.NewVolume = newVolume
			b.synced()
			assert.Equal(t, `{"one": 2}`, b.read(view))
			assert.Equal(t, newVolume, len(v.asked) == 1, "%d requests", len(v.asked)) // the first request was before the loss
			asked := len(v.asked)
			b.push(gitserver.Write(view, `{"one": 3}`))
			b.synced()
			assert.Len(t, v.asked, asked+1, "the next commit needs a review")
		})
	}
	t.Run("denied", func(t *testing.T) {
		b, v := reviewed(t)
		now := b.clock()
		v.answer = answers(false, "change board: \x1b[31mnot approved")
		r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonValidationDenied)
		assert.Contains(t, r.Message, `change board: \x1b[31mnot approved`)
		assert.WithinRange(t, r.RetryAt, now.Add(time.Minute-time.Second), now.Add(5*time.Minute))
		assert.Contains(t, r.Message, "it is asked again at "+r.RetryAt.UTC().Format(time.RFC3339)+", or now: stoker sync plant --force")
		assert.Equal(t, `{"one": 1}`, b.read(view))

		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonValidationDenied)
		assert.Len(t, v.asked, 1, "the webhook is not called again at once")
		*now = r.RetryAt
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonValidationDenied)
		require.Len(t, v.asked, 2)
		assert.Equal(t, v.asked[0], v.asked[1], "the same plan has the same uid")

		b.push(gitserver.Write(view, `{"one": 3}`))
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonValidationDenied)
		require.Len(t, v.asked, 3, "another commit needs another review")
		assert.NotEqual(t, v.asked[1].UID, v.asked[2].UID)
		b.target.Force = "now"
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonValidationDenied)
		require.Len(t, v.asked, 4, "a forced sync asks at once")
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonValidationDenied)
		require.Len(t, v.asked, 4, "and only once")
		*now = now.Add(5 * time.Minute)
		v.answer = answers(true, "")
		b.synced()
		assert.Equal(t, `{"one": 3}`, b.read(view))
	})
	t.Run("allowed once for a sync that waits", func(t *testing.T) {
		b, v := reviewed(t)
		b.push(gitserver.Delete("projects/line"))
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion)
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion)
		assert.Len(t, v.asked, 1)
		b.target.ConfirmDeletion = b.target.Commit.String()
		b.sync()
		assert.Len(t, v.asked, 1, "an allowed plan is not reviewed again")
	})
	t.Run("another address", func(t *testing.T) {
		b, v := reviewed(t)
		v.answer = answers(false, "")
		r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonValidationDenied)
		assert.Contains(t, r.Message, "it gives no reason")
		next := *b.conn.Webhook
		next.URL = v.URL + "/other"
		b.conn.Webhook = &next
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonValidationDenied)
		assert.Len(t, v.asked, 2)
	})
}

func TestSyncsWithoutWebhook(t *testing.T) {
	t.Run("a requested rollback", func(t *testing.T) {
		b, v := reviewed(t)
		b.target.RequestedRollback = true
		b.synced()
		assert.Empty(t, v.asked)
	})
	t.Run("a repair of the delivered commit", func(t *testing.T) {
		b, v := reviewed(t)
		b.synced()
		v.answer = answers(false, "")
		b.put(view, `{"edited": true}`)
		b.target.Repair = true
		b.synced()
		b.put(view, `{"edited": true}`)
		b.target.Repair, b.target.Force = false, "now"
		b.synced()
		assert.Equal(t, `{"one": 2}`, b.read(view))
		assert.Len(t, v.asked, 1)
	})
	t.Run("a restored snapshot", func(t *testing.T) {
		b, v := reviewed(t)
		b.target.Profile.Snapshots = new(anySnapshots)
		r := b.synced()
		require.Len(t, r.Snapshots, 1)
		v.answer = answers(false, "")
		b.target.Restore = r.Snapshots[0].ID
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": 1}`, b.read(view))
		assert.Len(t, v.asked, 1)
	})
	t.Run("a commit without changes for this gateway", func(t *testing.T) {
		b, v := reviewed(t)
		b.synced()
		v.answer = answers(false, "")
		b.push(gitserver.Write("README.md", "not for the gateway"))
		b.synced()
		assert.Len(t, v.asked, 1)
	})
	t.Run("a dry run", func(t *testing.T) {
		b, v := reviewed(t)
		b.target.Profile.DryRun = true
		b.sync()
		assert.Empty(t, v.asked)
	})
	t.Run("a forced sync of another commit is reviewed", func(t *testing.T) {
		b, v := reviewed(t)
		v.answer = answers(false, "")
		b.target.Force = "now"
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonValidationDenied)
	})
}

// C17 and C18 of docs/internals/threats.md: whatever the webhook answers, the gateway does not change, or the sync has a note.
func TestWebhookFaults(t *testing.T) {
	elsewhere := newValidator(t)
	b, v := reviewed(t)
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request, review.Request)
		change func(*review.Webhook)
		says   string
	}{
		"hang": {answer: func(_ http.ResponseWriter, r *http.Request, _ review.Request) {
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		},
			change: func(w *review.Webhook) { w.Client.Timeout = 200 * time.Millisecond }, says: "no complete answer within 200ms"},
		"redirect": {answer: func(w http.ResponseWriter, r *http.Request, _ review.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}, says: "HTTP 307 instead of 200"},
		"500": {answer: func(w http.ResponseWriter, _ *http.Request, _ review.Request) {
			http.Error(w, "S3CR3T", http.StatusInternalServerError)
		}, says: "HTTP 500 instead of 200"},
		"huge answer": {answer: func(w http.ResponseWriter, _ *http.Request, _ review.Request) {
			_, _ = w.Write(make([]byte, 1<<20))
		}, says: "too large"},
		"another uid": {answer: says(`{"uid": "x", "allowed": true}`), says: "the uid of another request"},
		"no uid":      {answer: says(`{"allowed": true}`), says: "the uid of another request"},
		"not JSON":    {answer: says("OK"), says: "is not {"},
		"no verdict": {answer: func(w http.ResponseWriter, _ *http.Request, q review.Request) {
			fmt.Fprintf(w, `{"uid": %q}`, q.UID)
		}, says: "is not {"},
		"empty":         {answer: says(""), says: "is not {"},
		"another CA":    {change: func(w *review.Webhook) { w.CA = nil }, says: "certificate"},
		"unreadable CA": {change: func(w *review.Webhook) { w.CA = func() ([]byte, error) { return nil, errors.New("no such file") } }, says: "no such file"},
		"unreadable key": {change: func(w *review.Webhook) {
			w.Key = func() (secret.String, error) { return secret.String{}, errors.New("no key") }
		}, says: "no key"},
		"unreachable":   {change: func(w *review.Webhook) { w.URL = "https://127.0.0.1:1/" }, says: "refused"},
		"loopback":      {change: func(w *review.Webhook) { w.Client.Loopback = false }, says: "is a loopback address"},
		"metadata":      {change: func(w *review.Webhook) { w.URL = "https://169.254.169.254/" }, says: "is a link-local address"},
		"loopback name": {change: func(w *review.Webhook) { w.URL, w.Client.Loopback = "https://localhost:8043/", false }, says: "is a loopback address"},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := b.read(view), fmt.Sprintf(`{"name": %q}`, name)
			b.push(gitserver.Write(view, after))
			b.conn.Webhook, v.answer = v.webhook(), answers(true, "")
			if c.answer != nil {
				v.answer = c.answer
			}
			if c.change != nil {
				c.change(b.conn.Webhook)
			}
			r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonValidationUnavailable)
			assert.Contains(t, r.Message, c.says)
			assert.NotContains(t, r.Message, "S3CR3T")
			assert.Less(t, len(r.Message), 600)
			assert.Equal(t, before, b.read(view))
			assert.Equal(t, v1alpha1.ClassRetry, r.Class())

			ignoring := *b.conn.Webhook
			ignoring.IgnoreFailure = true
			b.conn.Webhook = &ignoring
			r = b.synced()
			require.Len(t, r.Notes, 1)
			assert.Contains(t, r.Notes[0], c.says)
			assert.Equal(t, after, b.read(view))
		})
	}
	assert.Empty(t, elsewhere.asked)
	t.Run("recovery", func(t *testing.T) {
		b, v := reviewed(t)
		v.answer = says("")
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonValidationUnavailable)
		v.answer = answers(true, "")
		b.synced()
		assert.Len(t, v.asked, 2)
	})
}

// The receiver's own code must accept the signature.
func TestWebhookSignature(t *testing.T) {
	b, v := reviewed(t)
	b.conn.Webhook.Key = func() (secret.String, error) { return secret.New("new\nold"), nil }
	b.synced()
	proof, ok := credential.Read(v.header[0], time.Now())
	require.True(t, ok)
	assert.True(t, proof.Signed())
	check := credential.NewChecker()
	assert.True(t, check.Verify(proof, v.bodies[0], []secret.String{secret.New("new")}, 1))
	assert.False(t, check.Verify(proof, v.bodies[0], []secret.String{secret.New("old")}, 1))
	assert.False(t, check.Verify(proof, append(v.bodies[0], ' '), []secret.String{secret.New("new")}, 1))
}

func TestLargePlanIsTruncated(t *testing.T) {
	b, v := reviewed(t)
	var edits []gitserver.Edit
	for i := range 4000 {
		dir := fmt.Sprintf("projects/line/ignition/script-python/%0250d", i)
		edits = append(edits, gitserver.Write(dir+"/code.py", "pass"))
	}
	b.push(edits...)
	v.answer = answers(false, "")
	b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonValidationDenied)
	require.Len(t, v.asked, 1)
	assert.True(t, v.asked[0].Truncated)
	assert.LessOrEqual(t, len(v.bodies[0]), 1<<20)
	assert.Greater(t, len(v.bodies[0]), 1<<19)
	uid := v.asked[0].UID
	b.push(gitserver.Write("projects/line/ignition/script-python/z/code.py", "pass"))
	b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonValidationDenied)
	assert.NotEqual(t, uid, v.asked[1].UID)
}

// The page must show the forms that the agent sends and reads.
func TestDocumentedReview(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/validation.md")
	require.NoError(t, err)
	blocks := strings.Split(string(page), "```json\n")
	require.Len(t, blocks, 3)
	for i, form := range []any{&review.Request{}, &review.Answer{}} {
		t.Run(fmt.Sprintf("%T", form), func(t *testing.T) {
			shown, _, _ := strings.Cut(blocks[i+1], "```")
			d := json.NewDecoder(strings.NewReader(shown))
			d.DisallowUnknownFields()
			require.NoError(t, d.Decode(form))
			again, err := json.Marshal(form)
			require.NoError(t, err)
			assert.JSONEq(t, shown, string(again))
		})
	}
}

// emptied pushes a commit that deletes the project line and is held. It returns the commits before and after the deletion.
func (b *bench) emptied() (good, bad plan.ID) {
	b.t.Helper()
	b.target.Facts.CRName = "plant"
	good = b.push(append(firstCommit(), withProject("keep"))...)
	b.synced()
	bad = b.push(gitserver.Delete("projects/line/project.json"), gitserver.Delete(view), gitserver.Delete(viewDir+"/resource.json"))
	r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion)
	assert.Contains(b.t, r.Message, "3 files would be deleted")
	if b.target.File == "" {
		assert.Contains(b.t, r.Message, "; to approve this: stoker sync plant --confirm-deletion="+bad.Short())
	}
	return good, bad
}

func withProject(name string) gitserver.Edit {
	return gitserver.Write("projects/"+name+"/project.json", project("", false))
}

func TestMassDeletionApproval(t *testing.T) {
	for name, approve := range map[string]func(b *bench, good, bad plan.ID){
		"full commit":    func(b *bench, _, bad plan.ID) { b.target.ConfirmDeletion = bad.String() },
		"failed rollout": func(b *bench, _, _ plan.ID) { b.target.RolloutRollback = true },
		"short commit":   func(b *bench, _, bad plan.ID) { b.target.ConfirmDeletion = bad.Short() },
		"agent restart":  func(b *bench, _, bad plan.ID) { b.target.ConfirmDeletion = bad.String(); b.again() },
		"other commit meanwhile": func(b *bench, good, bad plan.ID) {
			b.target.ConfirmDeletion, b.target.Commit = bad.String(), good
			b.synced()
			b.target.Commit = bad
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, simulator.Options{})
			good, bad := b.emptied()
			approve(b, good, bad)
			b.synced()
			assert.Empty(t, b.read(view))
			assert.NotEmpty(t, b.read("projects/keep/project.json"))
		})
	}
	for name, refuse := range map[string]func(b *bench, good, bad plan.ID){
		"previous commit": func(b *bench, good, _ plan.ID) { b.target.ConfirmDeletion = good.String() },
		"six digits":      func(b *bench, _, bad plan.ID) { b.target.ConfirmDeletion = bad.String()[:6] },
		"upper case":      func(b *bench, _, bad plan.ID) { b.target.ConfirmDeletion = strings.ToUpper(bad.String()) + "X" },
		"force-sync":      func(b *bench, _, _ plan.ID) { b.target.Force = "now" },
		"later commit": func(b *bench, _, bad plan.ID) {
			b.target.ConfirmDeletion = bad.String()
			b.push(gitserver.Write("projects/keep/README.md", "other"))
		},
	} {
		t.Run("refused/"+name, func(t *testing.T) {
			b := newBench(t, simulator.Options{})
			good, bad := b.emptied()
			refuse(b, good, bad)
			b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion)
			assert.NotEmpty(t, b.read(view))
		})
	}
}

// A standalone agent has no cluster, so no command of stoker helps its user.
func TestMassDeletionApprovalInFile(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.target.File = "/etc/stoker/gatewaysync.yaml"
	_, bad := b.emptied()
	r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion)
	assert.Contains(t, r.Message, "; to approve this: set the annotation stoker.io/confirm-deletion to "+bad.Short()+" in /etc/stoker/gatewaysync.yaml")
	assert.NotContains(t, r.Message, "stoker sync")
}
