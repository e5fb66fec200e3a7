-- Does the node run scripts? Returns {1}.
return {1}
