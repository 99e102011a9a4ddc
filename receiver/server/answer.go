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

func writeJSON(w http.ResponseWriter, code int, body any) {
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

// writeResult writes an answer with a result and a message.
func writeResult(w http.ResponseWriter, code int, result, message string) {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	writeJSON(w, code, answer{Result: result, Message: message})
}

// writeUnauthorized answers an unauthenticated request. The answer is always the same.
func writeUnauthorized(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="stoker"`)
	w.Header().Set("Connection", "close")
	writeResult(w, http.StatusUnauthorized, "refused", "the request has no valid credential")
}

// writeBusy asks the sender to retry.
func writeBusy(w http.ResponseWriter, message string) {
	w.Header().Set("Retry-After", "5")
	writeResult(w, http.StatusServiceUnavailable, "busy", message)
}
