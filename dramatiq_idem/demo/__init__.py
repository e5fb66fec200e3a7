"""The demo: thousands of payments, many delivered twice, while workers and a node are killed.

traffic         which payments are sent, and which of them twice; pure
gateway         a payment gateway that charges an idempotency key once, and its ledger
journal         what workers did: files that outlive them
jobs            the application: broker, middleware, actor; the module that real dramatiq workers import
workers         those workers, as processes to kill
drill           what is killed when
audit           what the nodes and the gateway hold in the end, and what that means; pure but for the reading
run             one run from the first process to the last
display         what a person sees
history         what was done and seen, kept for a picture
timeline        what can be drawn of it, as records
reconstruction  from the one to the other; pure
traces          lanes, and bars, points and lines in them, as plotly.js takes them
layout          what is around them
figure          from a timeline to a figure; pure
page            the HTML file around it
command         the subcommand
"""
