package server

import (
	"encoding/json"
	"net/http"
	"strings"
)

// answer is the body of all answers to /webhook, and of errors of /status.
type answer struct {
	// Result is accepted, repeated, ignored, pong, superseded, invalid, refused, unknown, toolarge, busy or failed.
	Result      string `json:"result"`
	Ref         string `json:"ref,omitempty"`
	RequestedAt string `json:"requestedAt,omitempty"`
	Message     string `json:"message"`
}

// maxMessage bounds the text of an error in bytes.
const maxMessage = 500

func write(w http.ResponseWriter, code int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		code, text = http.StatusServiceUnavailable, []byte(`{"result":"failed","message":"the answer cannot be written"}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n')) // the client may be gone
}

func say(w http.ResponseWriter, code int, result, message string) {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	write(w, code, answer{Result: result, Message: message})
}

// refuse answers an unauthenticated request. The answer is always the same.
func refuse(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="stoker"`)
	w.Header().Set("Connection", "close")
	say(w, http.StatusUnauthorized, "refused", "no valid credential came with this request")
}

// busy asks the sender to retry.
func busy(w http.ResponseWriter, message string) {
	w.Header().Set("Retry-After", "5")
	say(w, http.StatusServiceUnavailable, "busy", message)
}
